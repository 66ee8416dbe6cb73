"""NcclRunner: times programs and NCCL or RCCL settings alternately; checks in the log that settings were used."""

import json
import shlex
import shutil
import socket
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from chorale.runners.api.base import FailureKind, Measurement, ResourceRequest, RunRequest, StuckInstruction
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.programs import equal_parts
from chorale.runners.api.units import divisible_size
from chorale.runners.api.validation import RequestFault
from chorale.runners.execution.rank_part import DataLayout, Message
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped, prepare_task
from chorale.runners.execution.started_ranks import Start, StreamRanks
from chorale.runners.measurement.machine import Facts
from chorale.runners.nccl.calls import TYPES
from chorale.runners.nccl.config import GpuRanksConfig, NcclConfig
from chorale.runners.nccl.log import SUBSYSTEMS, not_applied, variables_read
from chorale.runners.nccl.parameters import library_names, process_variables, settings_named
from chorale.runners.nccl.rank import LOG, NcclPart
from chorale.runners.process_launch import slurm
from chorale.runners.process_launch.processes import Host, LocalHost, ProcessHandle, ProcessSpec, rank_environment
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import Unavailable
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.programs.rounds import ProgramBlocks, rounds_of

if TYPE_CHECKING:
    from chorale.runners.ray.hosts import RayHosts

RANK = (sys.executable, "-P", "-m", "chorale.runners.nccl.rank")
HostsOf = Callable[[], tuple[Sequence[Host], str]]
"""Function that returns hosts, each for the same number of ranks, and the address at which they reach this process (""
if all run on this machine)."""
Config = TypeVar("Config", bound=GpuRanksConfig)


class NcclRanks(StreamRanks):
    """Starts and controls one set of rank processes, which share their environment variables and may write a log.

    hosts:     function that returns the hosts, for ranks that this process starts one by one
    joined:    settings, as text, for which the ranks already have a communicator
    variables: environment variables that rank 0 has read, according to the log lines fetched so far
    """

    def __init__(
        self,
        ranks: int,
        config: GpuRanksConfig,
        hosts: HostsOf,
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
        """Return facts that affect times, as the ranks report them."""
        return {"library": f"{'RCCL' if self.is_rccl else 'NCCL'} {self.hellos[0]['version']}"}

    def load(self, parts: Sequence[Sequence[NcclPart]], deadline: float) -> None:
        """Send each rank its parts of all programs and library calls; create the communicators that are missing."""
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
        missing = ("NCCL was not found", "there is no library", "runtime of the GPUs was not found", "SetDevice")
        return FailureKind.UNAVAILABLE if any(sign in reason for sign in missing) else FailureKind.CRASH


def _starting(ranks: int, config: GpuRanksConfig, hosts: HostsOf, variables: Mapping[str, str]) -> tuple[str, Start]:
    """Return the address at which ranks reach this process ("" on this machine), and a function that starts ranks."""

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
    words = slurm.launch_command(launcher, ranks, config.hosts, config.gpus_per_node, mpi="none")
    if shutil.which(words[0]) is None:
        way_out = "run on a node of a GPU cluster, or choose another launcher"
        raise Unavailable("the launcher of ranks must be installed", f"there is no {words[0]} here", way_out)
    rest_of = partial(command, rank=-1, per_node=slurm.gpus_per_node(ranks, config.hosts, config.gpus_per_node))

    def together(meeting: str, more: Mapping[str, str]) -> list[ProcessHandle]:
        passed = [word for name in (*variables, *more) for word in ("-x", name)] if launcher == "openmpi" else []
        # The step's name is a variable that the shell must expand.
        text = " ".join(word if slurm.STEP in word else shlex.quote(word) for word in [*words, *passed])
        in_steps = launcher == "srun" or slurm.in_slurm_job()
        return [slurm.start_launcher(f"exec {text} {shlex.join(rest_of(meeting))}", {**variables, **more}, in_steps)]

    return config.address or socket.getfqdn(), together


START_LIMIT_S, START_PER_RANK_S = 60.0, 0.5
"""Seconds that ranks may take to start, in addition to a request's time limit: a constant, plus an amount per rank.
Ranks need this time to load torch and CUDA."""
MOST_SETS = 3
"""Maximum number of sets of ranks to keep. It is small because each set occupies GPU memory."""

_SHARDED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER)
Variant = Sequence[NcclPart]
"""A program or library call to measure: each rank's part."""


class NcclGroups:
    """Implements `RankGroup` with several sets of rank processes. The library reads some variables once per process, so
    settings with different variables need different sets. Logged calls have separate sets, because logging is slow.
    """

    def __init__(self, ranks: int, config: GpuRanksConfig, node: ResourceRequest) -> None:
        self.ranks, self._config, self._node = range(ranks), config, node
        self._lent: RayHosts | None = None
        self._start = partial(NcclRanks, ranks, config, self._hosts)
        self._sets: dict[object, NcclRanks] = {}
        self._most = MOST_SETS
        self._owners: list[tuple[NcclRanks, int]] = []
        self._current: NcclRanks | None = None

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the ranks that ran last."""
        return [] if self._current is None else self._current.pids

    def ranks_for(self, part: NcclPart, logs: bool = False) -> NcclRanks:
        """Return ranks that can run `part`; start them if necessary, which may end the least recently used set."""
        key = part.process, logs
        if key not in self._sets:
            while len(self._sets) >= self._most:
                self._sets.pop(next(iter(self._sets))).close()
            limit = time.monotonic() + START_LIMIT_S + START_PER_RANK_S * len(self.ranks)
            self._sets[key] = self._start(dict(part.process[1]), logs, limit)
        self._sets[key] = self._current = self._sets.pop(key)
        return self._current

    def _hosts(self) -> tuple[Sequence[Host], str]:
        """Return the hosts that all sets use. On a Ray cluster, the hosts' GPUs stay reserved until `close`."""
        if self._config.launcher != "ray":
            return [LocalHost()], ""
        from chorale.runners.ray.hosts import RayHosts  # noqa: PLC0415 - Ray is slow to import

        self._lent = self._lent or RayHosts(len(self.ranks), self._config.gpus_per_node, self._node)
        return self._lent.hosts or (), self._lent.own_address

    def load(self, variants: Sequence[Variant], deadline: float) -> None:
        """Send each variant that will be timed to the ranks that run it. Variants are numbered in the given order."""
        self._most = max(MOST_SETS, len({variant[0].process for variant in variants}))
        by_set: dict[NcclRanks, list[Variant]] = {}
        self._owners = []
        for variant in variants:
            own = by_set.setdefault(owner := self.ranks_for(variant[0]), [])
            self._owners.append((owner, len(own)))
            own.append(variant)
        for owner, own in by_set.items():
            self._current = owner
            owner.load([[variant[rank] for variant in own] for rank in self.ranks], deadline)

    def request(self, command: Message, deadline: float, doing: str) -> Mapping[int, Message]:
        if command["do"] == "prepare":
            self._current, number = self._owners[command["program"]]
            command = {**command, "program": number}
        assert self._current is not None
        return self._current.request(command, deadline, doing)

    def timed_start(self, deadline: float, doing: str) -> float:
        assert self._current is not None
        return self._current.timed_start(deadline, doing)

    def blocked_ranks(self) -> dict[int, list[StuckInstruction] | None]:
        return {} if self._current is None else self._current.blocked_ranks()

    def close(self, gracefully: bool = True) -> None:
        for each in self._sets.values():
            each.close(gracefully)
        self._sets.clear()
        if self._lent is not None:
            with suppress(Unavailable):
                self._lent.close()
            self._lent = None


class GpuRunner(LiveRunner[NcclGroups], Generic[Config]):
    """Base class of runners for libraries with NCCL's interface. A variant is a program or a library call with
    settings. Each variant runs in processes that have the environment variables it needs.

    A repetition's time is the mean over `iterations` successive calls. An additional call before them, on separate
    memory, is checked but not timed.
    """

    def __init__(self, config: Config, node: ResourceRequest | None = None) -> None:
        super().__init__()
        self._config, self._node = config, node or ResourceRequest()
        self._proved: set[object] = set()  # calls that ran as intended, as a log has shown

    def _faults(self, request: RunRequest) -> Iterator[RequestFault]:
        yield from super()._faults(request)
        if request.dtype not in TYPES:
            yield FailureKind.REJECTED, f"NCCL has no type {request.dtype}"
        for name, program in request.programs.items():
            if program.collective.custom is not None or program.collective.name.is_uneven:
                yield FailureKind.REJECTED, f"program {name}: NCCL runs collectives of equal shards"

    @abstractmethod
    def _variants(self, request: RunRequest, group: NcclGroups) -> list[Variant]:
        """Return the variants to measure: the programs of `request`, then its library algorithms."""

    @abstractmethod
    def _prove(self, group: NcclGroups, request: RunRequest, variants: Sequence[Variant], deadline: float) -> None:
        """Raise RunStopped unless logged calls show that the variants ran as intended."""

    def _logs(
        self, group: NcclGroups, request: RunRequest, variant: Variant, what: str, sizes: Sequence[int], deadline: float
    ) -> list[list[list[str]]]:
        """Make one logged call of `variant` with each number of elements in `sizes`. Return each rank's lines: those
        logged before the calls, then those of each call.
        """
        ranks = group.ranks_for(variant[0], logs=True)
        ranks.load([[part] for part in variant], deadline)
        logs = [ranks.log_lines(deadline)]
        for elements in sizes:
            doing = f"{what} was proved on {elements} elements"
            ranks.request(prepare_task(0, elements, request.dtype, seed=request.seed), deadline, doing)
            ranks.timed_start(deadline, doing)
            logs.append(ranks.log_lines(deadline))
        return logs

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        config = self._config
        ranks = request.topology.compute_count
        node = ResourceRequest(0, 0, self._node.resources, self._node.labels)
        group = self._group_for(ranks, lambda: NcclGroups(ranks, config, node))
        variants = self._variants(request, group)
        first = group.ranks_for(variants[-1][0])
        per_node = config.gpus_per_node
        if per_node and config.hosts and (fault := slurm.placement_fault(config.hosts, per_node, first.hosts)):
            raise RunStopped(FailureKind.UNAVAILABLE, fault)
        settings = " ".join(f"{name}={value}" for name, value in sorted(config.variables.items()))
        options = {name: one for name, one in config.rank_options().items() if one and name != "memory"}
        facts = {"launcher": config.launcher, "variables": settings, **options}
        self._identify({**first.facts, "clock": "stream", **facts, "nodes": slurm.host_names(first.hosts)}, environment)
        deadline = time.monotonic() + request.timeout_s
        self._prove(group, request, variants, deadline)
        group.load(variants, deadline)
        return Measurement(self.name, MeasurementRounds(group, request, deadline).measure(), environment)


class NcclRunner(GpuRunner[NcclConfig]):
    """Implements `Runner` on stock NCCL or RCCL.

    Settings are timed at a size only after a logged call has shown that the library uses them at this size.
    """

    name = "nccl"
    accepts: ClassVar[Mapping[str, bool]] = {"settings": True}

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the names of the library's own choice of algorithm, and of each algorithm with each protocol."""
        return library_names(collective)

    def _variants(self, request: RunRequest, group: NcclGroups) -> list[Variant]:
        collective, ranks = next(iter(request.programs.values())).collective, request.topology.compute_count
        in_place = self._config.works_in_place(collective.name)
        plain = group.ranks_for(library_variant(collective, None, in_place, ranks)[0])
        variants = [self._variant(name, program, plain) for name, program in request.programs.items()]
        settings = map(settings_named, request.library)
        return [*variants, *(library_variant(collective, each, in_place, ranks) for each in settings)]

    def _variant(self, name: str, program: object, ranks: NcclRanks) -> Variant:
        if isinstance(program, LibraryCall):
            fault = self._config.fault_with(program.collective.name, program.settings, ranks.version, ranks.is_rccl)
            if fault is not None:
                raise RunStopped(FailureKind.NOT_APPLIED, f"{name}: {fault}")
            return library_variant(program.collective, program.settings, program.in_place, program.rank_count)
        assert isinstance(program, Program)
        try:
            rounds = rounds_of(program)
        except ProgramBlocks as error:
            where = "; ".join(f"rank {rank} block {block} instruction {step}" for rank, block, step in error.stuck[:8])
            message = f"{name} never ends: {where} cannot begin"
            raise RunStopped(FailureKind.TIMEOUT, message, error.stuck[0][0], error.stuck) from error
        adds = any(step.right is not None for each in rounds for turn in each.rounds for step in turn.local)
        if (adds or program.collective.reduces) and not ranks.adds:
            raise RunStopped(FailureKind.UNAVAILABLE, "programs that add need PyTorch with CUDA or ROCm on the nodes")
        layout = DataLayout(program.collective, len(program.ranks), program.chunks, program.in_place)
        return [NcclPart(layout, None, each) for each in rounds]

    def _prove(self, group: NcclGroups, request: RunRequest, variants: Sequence[Variant], deadline: float) -> None:
        """Make a logged call with each setting at each size. Raises RunStopped unless logs show that each is used."""
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        parts = [equal_parts(program, element_bytes) for program in request.programs.values()]
        elements = [divisible_size(size, element_bytes, parts) // element_bytes for size in request.sizes_bytes]
        for variant in variants:
            settings, layout = variant[0].settings, variant[0].layout
            keys = [(f"{layout.collective.name} {settings} {layout.in_place}", request.dtype, one) for one in elements]
            if settings is None or self._proved.issuperset(keys):
                continue
            before, *logs = (each[0] for each in self._logs(group, request, variant, str(settings), elements, deadline))
            shares = layout.ranks if layout.collective.name in _SHARDED else 1
            sizes = [count // shares * element_bytes for count in elements]
            fault = not_applied(settings, layout.collective.name, sizes, [[*before, *log] for log in logs])
            read = group.ranks_for(variant[0], logs=True).variables
            for name, value in process_variables(settings).items():
                if read.get(name) != value:
                    fault = fault or f"the library did not read {name}={value}"
            if fault is not None:
                raise RunStopped(FailureKind.NOT_APPLIED, f"{settings}: {fault}")
            self._proved |= set(keys)


def library_variant(
    collective: Collective,
    settings: LibrarySettings | None,
    in_place: bool,
    ranks: int,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Variant:
    """Return the variant for a library call with `settings`, in processes with `variables`."""
    layout = DataLayout(collective, ranks, ranks if collective.name in SPLIT_BY_RANK else 1, in_place)
    return [NcclPart(layout, settings, variables=tuple(variables.items()))] * ranks
