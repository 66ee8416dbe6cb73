"""NcclRunner: times programs and NCCL or RCCL settings alternately; the log proves that settings were used."""

import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from chorale.runners.api.base import FailureKind, Measurement, ResourceRequest, RunRequest, StuckInstruction
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.programs import equal_parts
from chorale.runners.api.units import divisible_size
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.execution.rank_part import DataLayout, Message
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped, prepare_task
from chorale.runners.nccl.calls import TYPES
from chorale.runners.nccl.config import GpuRanksConfig, NcclConfig
from chorale.runners.nccl.log import not_applied
from chorale.runners.nccl.parameters import library_names, process_variables, settings_named
from chorale.runners.nccl.rank import NcclPart
from chorale.runners.nccl.ranks import NcclRanks
from chorale.runners.process_launch.placement import host_names, placement_fault
from chorale.runners.process_launch.processes import Host, LocalHost
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.errors import Unavailable
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.programs.rounds import ProgramBlocks, rounds_of

if TYPE_CHECKING:
    from chorale.runners.ray.hosts import RayGpuCluster

START_LIMIT_S, START_PER_RANK_S = 60.0, 0.5
"""Time that ranks may need to start (they load torch and CUDA), in addition to a request's time limit."""
MOST_SETS = 3
"""Number of sets of ranks that are kept: few, because each set occupies GPU memory."""

_SHARDED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER)
Variant = Sequence[NcclPart]
"""A program or library call to measure: each rank's part."""


class NcclGroups:
    """Implements `RankGroup` with several sets of ranks. The library reads some variables only once per process, so
    settings with different variables need different processes. Logging slows calls, so logged calls have their own set.
    """

    def __init__(self, ranks: int, config: GpuRanksConfig, node: ResourceRequest) -> None:
        self.ranks, self._config = range(ranks), config
        self._cluster = _ray_cluster(node) if config.launcher == "ray" else None
        self._start = partial(NcclRanks, ranks, config, self._hosts)
        self._sets: dict[object, NcclRanks] = {}
        self._most = MOST_SETS
        self._owners: list[tuple[NcclRanks, int]] = []
        self._current: NcclRanks | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks that ran last."""
        return [] if self._current is None else self._current.pids

    def ranks_for(self, part: NcclPart, logs: bool = False) -> NcclRanks:
        """Return ranks that can run `part`, started if necessary; the least recently used set may be ended."""
        key = part.process, logs
        if key not in self._sets:
            while len(self._sets) >= self._most:
                self._sets.pop(next(iter(self._sets))).close()
            limit = time.monotonic() + START_LIMIT_S + START_PER_RANK_S * len(self.ranks)
            self._sets[key] = self._start(dict(part.process[1]), logs, limit)
        self._sets[key] = self._current = self._sets.pop(key)
        return self._current

    def _hosts(self) -> tuple[Sequence[Host], str]:
        """Return the hosts of all sets; on a Ray cluster, they hold their GPUs until `close`."""
        if self._cluster is None:
            return [LocalHost()], ""
        hosts, _ = self._cluster.lease(len(self.ranks), self._config.gpus_per_node)
        return hosts, self._cluster.own_address

    def load(self, variants: Sequence[Variant], deadline: float) -> None:
        """Send all variants that will be timed to their ranks, and number them in this order."""
        self._most = max(MOST_SETS, len({variant[0].process for variant in variants}))
        by_set: dict[NcclRanks, list[int]] = {}
        for number, variant in enumerate(variants):
            by_set.setdefault(self.ranks_for(variant[0]), []).append(number)
        owners: dict[int, tuple[NcclRanks, int]] = {}
        for owner, numbers in by_set.items():
            self._current = owner
            owner.load([[variants[number][rank] for number in numbers] for rank in self.ranks], deadline)
            owners |= {number: (owner, place) for place, number in enumerate(numbers)}
        self._owners = [owners[number] for number in range(len(variants))]

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
        if self._cluster is not None:
            with suppress(Unavailable):
                self._cluster.release()


def _ray_cluster(node: ResourceRequest) -> "RayGpuCluster":
    from chorale.runners.ray.hosts import RayGpuCluster  # noqa: PLC0415 - Ray is slow to import

    return RayGpuCluster(node)


class GpuRunner(LiveRunner[NcclGroups]):
    """Base of runners for libraries with NCCL's interface. Each variant runs in processes with the variables it needs.

    A repetition's time is the mean over `iterations` successive calls. The results of an extra call before them, on
    separate memory, are checked.
    """

    def __init__(self, config: GpuRanksConfig, node: ResourceRequest | None = None) -> None:
        super().__init__()
        self._config, self._node = config, node or ResourceRequest()

    @abstractmethod
    def _variants(self, request: RunRequest, group: NcclGroups) -> list[Variant]:
        """Return the variants to measure: the programs of `request`, then its library algorithms."""

    @abstractmethod
    def _prove(self, group: NcclGroups, request: RunRequest, variants: Sequence[Variant], deadline: float) -> None:
        """Raise RunStopped if a log does not show that variants ran as intended."""

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        request, config = replace(request, trace=False), self._config
        ranks = request.topology.compute_count
        node = ResourceRequest(0, 0, self._node.resources, self._node.labels)
        group = self._group_for(ranks, lambda: NcclGroups(ranks, config, node))
        variants = self._variants(request, group)
        first = group.ranks_for(variants[-1][0])
        per_node = config.gpus_per_node
        if per_node and config.hosts and (fault := placement_fault(config.hosts, per_node, first.hosts)):
            raise RunStopped(FailureKind.UNAVAILABLE, fault)
        settings = " ".join(f"{name}={value}" for name, value in sorted(config.variables.items()))
        options = {name: one for name, one in config.rank_options().items() if one and name != "memory"}
        facts = {"launcher": config.launcher, "variables": settings, **options}
        self._identify({**first.facts, "clock": "stream", **facts, "nodes": host_names(first.hosts)}, environment)
        deadline = time.monotonic() + request.timeout_s
        self._prove(group, request, variants, deadline)
        group.load(variants, deadline)
        return Measurement(self.name, MeasurementRounds(group, request, deadline).measure(), environment)


class NcclRunner(GpuRunner):
    """Implements `Runner` on stock NCCL or RCCL.

    A setting is timed at a size only after a logged call has shown that the library used it.
    """

    name = "nccl"

    def __init__(self, config: NcclConfig, node: ResourceRequest | None = None) -> None:
        super().__init__(config, node)
        self._in_place, self._fault_with = config.works_in_place, config.fault_with
        self._proved: set[tuple[str, str, int]] = set()

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the library's own choice, and each of its algorithms with each protocol."""
        return library_names(collective)

    def _fault(self, request: RunRequest) -> RequestFault | None:
        return validate_request(request, self.library, gpu_faults, settings=True)

    def _variants(self, request: RunRequest, group: NcclGroups) -> list[Variant]:
        collective, ranks = next(iter(request.programs.values())).collective, request.topology.compute_count
        in_place = self._in_place(collective.name)
        plain = group.ranks_for(library_variant(collective, None, in_place, ranks)[0])
        variants = [self._variant(name, program, plain) for name, program in request.programs.items()]
        settings = map(settings_named, request.library)
        return [*variants, *(library_variant(collective, each, in_place, ranks) for each in settings)]

    def _variant(self, name: str, program: object, ranks: NcclRanks) -> Variant:
        if isinstance(program, LibraryCall):
            fault = self._fault_with(program.collective.name, program.settings, ranks.version, ranks.is_rccl)
            if fault is not None:
                raise RunStopped(FailureKind.NOT_APPLIED, f"{name}: {fault}")
            return library_variant(program.collective, program.settings, program.in_place, program.rank_count)
        assert isinstance(program, Program)
        try:
            rounds = rounds_of(program)
        except ProgramBlocks as error:
            where = "; ".join(f"rank {rank} block {block} instruction {step}" for rank, block, step in error.stuck[:8])
            raise _NeverEnds(f"{name} never ends: {where} cannot begin", error.stuck) from error
        adds = any(step.right is not None for each in rounds for turn in each.rounds for step in turn.local)
        if (adds or program.collective.reduces) and not ranks.adds:
            raise RunStopped(FailureKind.UNAVAILABLE, "programs that add need PyTorch with CUDA or ROCm on the nodes")
        layout = DataLayout(program.collective, len(program.ranks), program.chunks, program.in_place)
        return [NcclPart(layout, None, each) for each in rounds]

    def _prove(self, group: NcclGroups, request: RunRequest, variants: Sequence[Variant], deadline: float) -> None:
        """Make one logged call with each setting at each size. Raises RunStopped if the log does not show its use."""
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        parts = [equal_parts(program, element_bytes) for program in request.programs.values()]
        elements = [divisible_size(size, element_bytes, parts) // element_bytes for size in request.sizes_bytes]
        for variant in variants:
            settings, layout = variant[0].settings, variant[0].layout
            keys = [(f"{layout.collective.name} {settings} {layout.in_place}", request.dtype, one) for one in elements]
            if settings is None or self._proved.issuperset(keys):
                continue
            ranks = group.ranks_for(variant[0], logs=True)
            ranks.load([[part] for part in variant], deadline)
            logs, before = [], ranks.log_lines(deadline)[0]
            for count in elements:
                doing = f"{settings} was proved on {count} elements"
                ranks.request(prepare_task(0, count, request.dtype, seed=request.seed), deadline, doing)
                ranks.timed_start(deadline, doing)
                logs.append([*before, *ranks.log_lines(deadline)[0]])
            shares = layout.ranks if layout.collective.name in _SHARDED else 1
            sizes = [count // shares * element_bytes for count in elements]
            fault = not_applied(settings, layout.collective.name, sizes, logs)
            for name, value in process_variables(settings).items():
                if ranks.variables.get(name) != value:
                    fault = fault or f"the library did not read {name}={value}"
            if fault is not None:
                raise RunStopped(FailureKind.NOT_APPLIED, f"{settings}: {fault}")
            self._proved |= set(keys)


class _NeverEnds(RunStopped):
    """Raised for a program that would deadlock. blocked: every block that cannot continue"""

    def __init__(self, message: str, stuck: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(FailureKind.TIMEOUT, message, stuck[0][0])
        self.blocked = tuple(stuck)


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


def gpu_faults(request: RunRequest) -> Iterator[RequestFault]:
    """Yield reasons why no library with NCCL's interface can run `request`."""
    most = ELEMENT_TYPES[request.dtype].max_ranks
    if request.topology.compute_count > most:
        yield FailureKind.REJECTED, f"data of type {request.dtype} can be checked on at most {most} ranks"
    if request.dtype not in TYPES:
        yield FailureKind.REJECTED, f"NCCL has no type {request.dtype}"
    for name, program in request.programs.items():
        if program.collective.custom is not None or program.collective.name.is_uneven:
            yield FailureKind.REJECTED, f"program {name}: NCCL runs collectives of equal shards"
