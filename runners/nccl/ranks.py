"""The processes of all ranks over NCCL: where they run, how they are started and loaded, and how logs are read."""

import json
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from chorale.runners.api.base import FailureKind
from chorale.runners.execution.started_ranks import Start, StreamRanks
from chorale.runners.measurement.machine import Facts
from chorale.runners.nccl.config import GpuRanksConfig
from chorale.runners.nccl.log import SUBSYSTEMS, variables_read
from chorale.runners.nccl.rank import LOG, NcclPart
from chorale.runners.process_launch.launchers import STEP, gpus_per_node, launch_command
from chorale.runners.process_launch.processes import Host, ProcessHandle, ProcessSpec, rank_environment
from chorale.runners.process_launch.slurm import in_slurm_job, start_launcher
from chorale.synth.errors import Unavailable

RANK = (sys.executable, "-P", "-m", "chorale.runners.nccl.rank")
Hosts = Callable[[], tuple[Sequence[Host], str]]
"""Returns hosts with the same number of ranks each, and this process's address for them (empty on this machine)."""


class NcclRanks(StreamRanks):
    """The processes of all ranks, started with the environment variables that some settings need, with or without
    logging.

    hosts:     function that returns the hosts of ranks that this process starts one by one
    joined:    texts of all settings that already have a communicator
    variables: environment variables that rank 0 has read, according to the log lines that were fetched
    """

    def __init__(
        self,
        ranks: int,
        config: GpuRanksConfig,
        hosts: Hosts,
        variables: Mapping[str, str],
        logs: bool,
        deadline: float,
    ) -> None:
        self.joined: set[str] = set()
        self.variables: dict[str, str] = {}
        each = {**rank_environment(), **config.own_variables(), **config.variables, **variables}
        each["NCCL_DEBUG"] = "INFO" if logs else "WARN"
        each |= {"NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": LOG} if logs else {}
        address, start = _starting(ranks, config, hosts, each)
        super().__init__(ranks, address, start, deadline)
        major, minor = str(self.hellos[0]["version"]).split(".")[:2]
        self.version = int(major), int(minor)
        self.adds = all(hello["adds"] for hello in self.hellos.values())
        self.is_rccl = bool(self.hellos[0]["rccl"])

    @property
    def facts(self) -> Facts:
        """Facts that affect times, as the ranks report them."""
        return {"library": f"{'RCCL' if self.is_rccl else 'NCCL'} {self.hellos[0]['version']}"}

    def load(self, parts: Sequence[Sequence[NcclPart]], deadline: float) -> None:
        """Send each rank its parts of all programs and library calls, and create missing communicators."""
        texts = dict.fromkeys(str(part.settings) for part in parts[0])
        new = [text for text in texts if text not in self.joined]
        doing = "the ranks connected"
        made = self.request({"do": "ids", "count": len(new)}, deadline, doing)[0]["ids"]
        ids = dict(zip(new, made, strict=True))
        documents = [[part.to_json() for part in each] for each in parts]
        self.request([{"do": "load", "part": each, "ids": ids} for each in documents], deadline, doing)
        self.joined |= set(new)

    def log_lines(self, deadline: float) -> list[list[str]]:
        """Return the lines that each rank has logged since the last call."""
        answers = self.request({"do": "log"}, deadline, "the log was read")
        self.variables |= variables_read(answers[0]["lines"])
        return [answers[rank]["lines"] for rank in self.ranks]

    def _kind_of(self, reason: str) -> FailureKind:
        missing = (
            "NCCL was not found",
            "there is no library",
            "runtime of the GPUs was not found",
            "cudaSetDevice",
            "hipSetDevice",
        )
        return FailureKind.UNAVAILABLE if any(sign in reason for sign in missing) else FailureKind.CRASH


def _starting(ranks: int, config: GpuRanksConfig, hosts: Hosts, variables: Mapping[str, str]) -> tuple[str, Start]:
    """Return this process's address for the ranks (empty if they run here), and a function that starts them."""

    def command(meeting: str, rank: int, per_node: int) -> tuple[str, ...]:
        numbers = map(str, (rank, ranks, per_node))
        return (*RANK, meeting, *numbers, *config.libraries, json.dumps(config.rank_options()))

    launcher = config.launcher
    if launcher == "local" or launcher == "ray":  # noqa: PLR1714 - mypy narrows only this
        found, own_address = hosts()
        per_node = ranks // len(found)
        gpus = config.gpus_per_node or per_node

        def each(meeting: str, more: Mapping[str, str]) -> list[ProcessHandle]:
            started = []
            for rank in range(ranks):
                own = {name: text.replace("{rank}", str(rank)) for name, text in variables.items()}
                started.append(
                    found[rank // per_node].start(ProcessSpec(command(meeting, rank, gpus), {**own, **more}))
                )
            return started

        return (config.address or own_address) if own_address else "", each

    # Ranks started by srun need no MPI, because srun sets a variable with their number.
    words = launch_command(launcher, ranks, config.hosts, config.gpus_per_node, mpi="none")
    if shutil.which(words[0]) is None:
        way_out = "run on a node of a GPU cluster, or choose another launcher"
        raise Unavailable("the launcher of ranks must be installed", f"there is no {words[0]} here", way_out)
    rest_of = partial(command, rank=-1, per_node=gpus_per_node(ranks, config.hosts, config.gpus_per_node))

    def together(meeting: str, more: Mapping[str, str]) -> list[ProcessHandle]:
        passed = [word for name in (*variables, *more) for word in ("-x", name)] if launcher == "openmpi" else []
        # The step's name is a variable that the shell must expand.
        text = " ".join(word if STEP in word else shlex.quote(word) for word in [*words, *passed])
        in_steps = launcher == "srun" or in_slurm_job()
        return [start_launcher(f"exec {text} {shlex.join(rest_of(meeting))}", {**variables, **more}, in_steps)]

    return config.address or socket.getfqdn(), together
