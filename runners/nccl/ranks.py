"""The processes of all ranks over NCCL: where they run, how they are started and loaded, how logs are read."""

import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chorale.runners.api.base import FailureKind, ResourceRequest
from chorale.runners.execution.rounds import RunStopped
from chorale.runners.execution.started_ranks import StartedRanks
from chorale.runners.measurement.machine import Facts
from chorale.runners.nccl.log import SUBSYSTEMS
from chorale.runners.nccl.plugin import tuner_plugin
from chorale.runners.nccl.rank import LOG, NcclPart
from chorale.runners.process_launch.launchers import Launcher, gpus_per_node, launch_command
from chorale.runners.process_launch.processes import Host, LocalHost, ProcessHandle, ProcessSpec, rank_environment
from chorale.runners.process_launch.slurm import SlurmHost

RANK = (sys.executable, "-P", "-m", "chorale.runners.nccl.rank")
LOCAL, RAY = "local", "ray"


@dataclass(frozen=True, slots=True)
class RankOptions:
    """How to start ranks and what they run; see `NcclConfig` for the fields of these names."""

    launcher: str = LOCAL
    hosts: tuple[str, ...] = ()
    gpus_per_node: int | None = None
    address: str | None = None
    library: str = "nccl"
    runtime: str | None = None
    memory: str = "gpu"
    iterations: int = 20
    variables: Mapping[str, str] = field(default_factory=dict)
    node: ResourceRequest = field(default_factory=ResourceRequest)


@dataclass(frozen=True, slots=True)
class _Command:
    launcher: Launcher
    hosts: Sequence[str]
    gpus_per_node: int | None
    mpi: str | None = "none"


class NcclRanks(StartedRanks):
    """The ranks, with variables of a process that settings need, and with or without a log.

    joined: settings that have a communicator, by their text
    """

    def __init__(
        self, ranks: int, options: RankOptions, variables: Mapping[str, str], logs: bool, deadline: float
    ) -> None:
        self.joined: set[str] = set()
        self._logged = 0
        each = {**rank_environment(), "NCCL_TUNER_PLUGIN": str(tuner_plugin()), **options.variables, **variables}
        each |= (
            {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, "NCCL_DEBUG_FILE": LOG}
            if logs
            else {"NCCL_DEBUG": "WARN"}
        )
        address, start, release = _starting(ranks, options, each)
        super().__init__(ranks, address, start, deadline, release)
        major, minor = str(self.hellos[0]["version"]).split(".")[:2]
        self.version = int(major), int(minor)
        self.adds = all(hello["adds"] for hello in self.hellos.values())
        self.is_rccl = bool(self.hellos[0]["rccl"])

    @property
    def facts(self) -> Facts:
        """Facts that affect times, as the ranks report them."""
        return {"library": f"{'RCCL' if self.is_rccl else 'NCCL'} {self.hellos[0]['version']}"}

    def load(self, parts: Sequence[Sequence[NcclPart]], deadline: float) -> None:
        """Give each rank its part of every variant, and make the communicators that are not there yet."""
        texts = dict.fromkeys(str(part.settings) for part in parts[0])
        new = [text for text in texts if text not in self.joined]
        doing = "the ranks looked for one another"
        made = self.request({"do": "ids", "count": len(new)}, deadline, doing)[0]["ids"]
        ids = dict(zip(new, made, strict=True))
        documents = [[part.to_json() for part in each] for each in parts]
        self.request([{"do": "load", "part": each, "ids": ids} for each in documents], deadline, doing)
        self.joined |= set(new)

    def log_lines(self, deadline: float) -> list[str]:
        """Return what rank 0 has logged since the last time."""
        answers = self.request({"do": "log", "from": self._logged}, deadline, "the log was read")
        self._logged = int(answers[0]["to"])
        return list(answers[0]["lines"])

    def timed_start(self, deadline: float, doing: str) -> float:
        """Return the longest time of a call on any rank, by the clock of its stream."""
        self.send({"do": "go", "at": 0.0, "limit_s": max(0.0, deadline - time.monotonic())}, deadline)
        return max(float(answer["seconds"]) for answer in self.receive(deadline, doing).values())

    def _refusal(self, rank: int, message: str) -> RunStopped:
        if self._kind_of(message) is not FailureKind.CRASH:
            return RunStopped(self._kind_of(message), f"rank {rank} failed: {message}", rank)
        return super()._refusal(rank, message)

    def _kind_of(self, reason: str) -> FailureKind:
        missing = ("NCCL must be there", "runtime of the GPUs must be there", "cudaSetDevice", "hipSetDevice")
        return FailureKind.UNAVAILABLE if any(sign in reason for sign in missing) else FailureKind.CRASH


def _starting(
    ranks: int, options: RankOptions, variables: Mapping[str, str]
) -> tuple[str, Callable[[str, Mapping[str, str]], list[ProcessHandle]], Callable[[], None]]:
    """Return the address of this process for ranks (empty: they run on this machine), a function that starts them, and
    one that frees their nodes.
    """

    def command(meeting: str, rank: int, per_node: int) -> tuple[str, ...]:
        words = (options.library, options.runtime or "", options.memory, str(options.iterations))
        return (*RANK, meeting, str(rank), str(ranks), str(per_node), *words)

    if options.launcher in (LOCAL, RAY):
        hosts, per_node, address, release = _hosts(ranks, options)

        gpus = options.gpus_per_node or per_node

        def each(meeting: str, more: Mapping[str, str]) -> list[ProcessHandle]:
            own = [
                {name: text.replace("{rank}", str(rank)) for name, text in variables.items()} for rank in range(ranks)
            ]
            return [
                hosts[rank // per_node].start(ProcessSpec(command(meeting, rank, gpus), {**own[rank], **more}))
                for rank in range(ranks)
            ]

        return address, each, release

    def together(meeting: str, more: Mapping[str, str]) -> list[ProcessHandle]:
        launcher: Launcher = (
            "srun" if options.launcher == "srun" else "mpich" if options.launcher == "mpich" else "openmpi"
        )
        launch = _Command(launcher, options.hosts, options.gpus_per_node)
        passing = [word for name in (*variables, *more) for word in ("-x", name)] if launcher == "openmpi" else []
        words = [*launch_command(ranks, launch), *passing]
        # The name of the step is a variable, which a shell puts in.
        text = " ".join(word if "$CHORALE_STEP" in word else shlex.quote(word) for word in words)
        rest = shlex.join(command(meeting, -1, gpus_per_node(ranks, launch)))
        host = SlurmHost() if launcher == "srun" else LocalHost()
        return [host.start(ProcessSpec(("/bin/sh", "-c", f"exec {text} {rest}"), {**variables, **more}))]

    return options.address or socket.getfqdn(), together, lambda: None


def _hosts(ranks: int, options: RankOptions) -> tuple[Sequence[Host], int, str, Callable[[], None]]:
    """Return hosts, ranks on each, this process's address for them, and what lets go of them."""
    if options.launcher == LOCAL:
        return [LocalHost()], ranks, "", lambda: None
    from chorale.runners.ray.hosts import RayGpuCluster  # noqa: PLC0415 - Ray is slow to import

    cluster = RayGpuCluster(options.node)
    lease = cluster.lease(ranks, options.gpus_per_node)
    return lease.hosts, lease.gpus_per_node, options.address or cluster.own_address, cluster.release
