"""NcclRunner: settings of NCCL or RCCL, verified by its log, and programs, timed alternately."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from chorale.runners.api.base import FailureKind, Measurement, RunRequest, StuckInstruction
from chorale.runners.api.elements import ELEMENT_TYPES
from chorale.runners.api.programs import equal_parts
from chorale.runners.api.units import divisible_size
from chorale.runners.api.validation import RequestFault, validate_request
from chorale.runners.execution.rank_part import DataLayout, Message
from chorale.runners.execution.rounds import Environment, LiveRunner, MeasurementRounds, RunStopped, prepare_task
from chorale.runners.nccl.calls import TYPES
from chorale.runners.nccl.log import not_applied
from chorale.runners.nccl.parameters import library_names, process_variables, settings_fault, settings_named
from chorale.runners.nccl.rank import NcclPart
from chorale.runners.nccl.ranks import NcclRanks, RankOptions
from chorale.runners.process_launch.placement import RankHost, host_names, placement_fault
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.library_call import LibraryCall, LibrarySettings
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.programs.rounds import ProgramBlocks, rounds_of

START_LIMIT_S, START_PER_RANK_S = 60.0, 0.5
"""Time that ranks may need to start (they load torch and CUDA), in addition to the time limit of a request."""
MOST_SETS = 3
"""Sets of ranks that are kept: each holds memory of the GPUs."""

_SHARDED = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER)
Variant = Sequence[NcclPart]
"""What is measured: the part of each rank."""


class NcclGroups:
    """Implements `RankGroup` by several sets of ranks. The library reads some variables once per process, so settings
    with different variables have their own ranks; so has the log, which takes time.
    """

    def __init__(self, ranks: int, options: RankOptions) -> None:
        self.ranks = range(ranks)
        self._options = options
        self._sets: dict[tuple[tuple[tuple[str, str], ...], bool], NcclRanks] = {}
        self._owners: list[tuple[NcclRanks, int]] = []
        self._current: NcclRanks | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the ranks that ran last."""
        return [] if self._current is None else self._current.pids

    def ranks_for(self, settings: LibrarySettings | None, logs: bool) -> NcclRanks:
        """Return ranks that can run with `settings`, started if necessary; the least recently used set may be ended."""
        key = tuple(sorted(process_variables(settings).items())), logs
        if key not in self._sets:
            while len(self._sets) >= MOST_SETS:
                self._sets.pop(next(iter(self._sets))).close()
            limit = time.monotonic() + START_LIMIT_S + START_PER_RANK_S * len(self.ranks)
            self._sets[key] = NcclRanks(len(self.ranks), self._options, dict(key[0]), logs, limit)
        self._sets[key] = self._current = self._sets.pop(key)
        return self._current

    def load(self, variants: Sequence[Variant], deadline: float) -> None:
        """Give the ranks all variants to be timed, by their numbers in this order."""
        by_set: dict[NcclRanks, list[int]] = {}
        for number, variant in enumerate(variants):
            by_set.setdefault(self.ranks_for(variant[0].settings, False), []).append(number)
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


class NcclRunner(LiveRunner[NcclGroups]):
    """Implements `Runner` on stock NCCL or RCCL.

    in_place: tells whether calls of a collective work in place; by default as PyTorch's do

    A setting is timed at a size only after a logged call has shown that the library used it. The time of a repetition
    is that of `iterations` successive calls divided by their number, on separate memory; the call before them has the
    data that are checked.
    """

    name = "nccl"

    def __init__(
        self, options: RankOptions, in_place: Callable[[CollectiveName], bool] = lambda name: name not in SPLIT_BY_RANK
    ) -> None:
        super().__init__()
        self._options, self._in_place = options, in_place
        self._proved: set[tuple[str, str, int]] = set()

    def library(self, collective: str) -> tuple[str, ...]:
        """Return the library's own choice, and each of its algorithms with each protocol."""
        return library_names(collective)

    def _fault(self, request: RunRequest) -> RequestFault | None:
        return validate_request(request, self.library, _faults, settings=True)

    def _measure(self, request: RunRequest, environment: Environment) -> Measurement:
        request = replace(request, trace=False)
        ranks = request.topology.compute_count
        group = self._group_for(ranks, lambda: NcclGroups(ranks, self._options))
        first = group.ranks_for(None, False)
        self._require_place(first)
        self._identify({**first.facts, "clock": "stream", **_facts(self._options), **_nodes(first)}, environment)
        variants = [self._variant(name, program, first) for name, program in request.programs.items()]
        collective = next(iter(request.programs.values())).collective
        variants += [
            _library_variant(collective, settings_named(name), self._in_place(collective.name), ranks)
            for name in request.library
        ]
        deadline = time.monotonic() + request.timeout_s
        self._prove(group, request, variants, deadline)
        group.load(variants, deadline)
        rounds = MeasurementRounds(group, request, deadline)
        return Measurement(self.name, rounds.measure(), environment)

    def _variant(self, name: str, program: object, ranks: NcclRanks) -> Variant:
        if isinstance(program, LibraryCall):
            fault = settings_fault(program.collective.name, program.settings, ranks.version, ranks.is_rccl)
            if fault is not None:
                raise RunStopped(FailureKind.NOT_APPLIED, f"{name}: {fault}")
            return _library_variant(program.collective, program.settings, program.in_place, program.rank_count)
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
        """Call each setting once at each size with a log. Raises RunStopped if the log does not show its use."""
        element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
        parts = [equal_parts(program, element_bytes) for program in request.programs.values()]
        elements = [divisible_size(size, element_bytes, parts) // element_bytes for size in request.sizes_bytes]
        for variant in variants:
            settings, layout = variant[0].settings, variant[0].layout
            keys = [(f"{layout.collective.name} {settings} {layout.in_place}", request.dtype, one) for one in elements]
            if settings is None or self._proved.issuperset(keys):
                continue
            ranks = group.ranks_for(settings, True)
            ranks.load([[part] for part in variant], deadline)
            ranks.log_lines(deadline)
            logs = []
            for count in elements:
                doing = f"{settings} was proved on {count} elements"
                ranks.request(prepare_task(0, count, request.dtype, seed=request.seed), deadline, doing)
                ranks.timed_start(deadline, doing)
                logs.append(ranks.log_lines(deadline))
            shares = layout.ranks if layout.collective.name in _SHARDED else 1
            sizes = [count // shares * element_bytes for count in elements]
            if (fault := not_applied(settings, layout.collective.name, sizes, logs)) is not None:
                raise RunStopped(FailureKind.NOT_APPLIED, f"{settings}: {fault}")
            self._proved |= set(keys)

    def _require_place(self, ranks: NcclRanks) -> None:
        hosts = {rank: RankHost.of_words(hello["host"]) for rank, hello in ranks.hellos.items()}
        per_node = self._options.gpus_per_node
        if per_node and self._options.hosts and (fault := placement_fault(self._options.hosts, per_node, hosts)):
            raise RunStopped(FailureKind.UNAVAILABLE, fault)


class _NeverEnds(RunStopped):
    """A program that would hang, with every block that cannot go on."""

    def __init__(self, message: str, stuck: Sequence[tuple[int, int, int]]) -> None:
        super().__init__(FailureKind.TIMEOUT, message, stuck[0][0])
        self.blocked = tuple(stuck)


def _library_variant(collective: Collective, settings: LibrarySettings | None, in_place: bool, ranks: int) -> Variant:
    return [NcclPart(DataLayout(collective, ranks, ranks, in_place), settings)] * ranks


def _facts(options: RankOptions) -> Environment:
    variables = " ".join(f"{name}={value}" for name, value in sorted(options.variables.items()))
    return {"launcher": options.launcher, "iterations": options.iterations, "variables": variables}


def _nodes(ranks: NcclRanks) -> Environment:
    hosts = {rank: RankHost.of_words(hello["host"]) for rank, hello in ranks.hellos.items()}
    return {"nodes": host_names(hosts)}


def _faults(request: RunRequest) -> Iterator[RequestFault]:
    most = ELEMENT_TYPES[request.dtype].max_ranks
    if request.topology.compute_count > most:
        yield FailureKind.REJECTED, f"data of type {request.dtype} can be checked on at most {most} ranks"
    if request.dtype not in TYPES:
        yield FailureKind.REJECTED, f"NCCL has no type {request.dtype}"
    for name, program in request.programs.items():
        if program.collective.custom is not None or program.collective.name.is_uneven:
            yield FailureKind.REJECTED, f"program {name}: NCCL runs collectives of equal shards"
