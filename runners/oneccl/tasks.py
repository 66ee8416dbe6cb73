"""The order of all runs of a request, and the text that tells the interpreter of each rank about them.

oneCCL reads once, at its start, which algorithm serves which range of sizes. So each library algorithm is measured at
sizes of its own, a few elements apart, with a range for each. interpreter/task.cpp reads the text; programs are in the
words that the engine takes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chorale.runners.api.base import RunRequest, SizeMeasurement, library_result
from chorale.runners.api.elements import ELEMENT_TYPES, DataPattern
from chorale.runners.api.trace import ExecutionTrace, RankTrace, median_trace
from chorale.runners.api.units import divisible_size
from chorale.runners.engine.encoding import encode_rank
from chorale.runners.engine.library import DataType
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import QUEUE_DEPTH, Program

_RANGE_BYTES = 16

ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    CollectiveName.ALLREDUCE: ("ring", "double_tree", "recursive_doubling", "rabenseifner", "2d", "nreduce"),
    CollectiveName.ALLGATHER: ("ring", "naive", "flat", "multi_bcast"),
    CollectiveName.REDUCE_SCATTER: ("ring", "naive"),
    CollectiveName.BROADCAST: ("ring", "double_tree", "naive"),
    CollectiveName.REDUCE: ("ring", "tree", "double_tree", "rabenseifner"),
    CollectiveName.ALLTOALL: ("naive", "scatter"),
}
"""What oneCCL's build for CPUs has over libfabric, by collective."""

VARIABLES: Mapping[str, str] = {
    CollectiveName.ALLREDUCE: "CCL_ALLREDUCE",
    CollectiveName.ALLGATHER: "CCL_ALLGATHERV",
    CollectiveName.REDUCE_SCATTER: "CCL_REDUCE_SCATTER",
    CollectiveName.BROADCAST: "CCL_BCAST",
    CollectiveName.REDUCE: "CCL_REDUCE",
    CollectiveName.ALLTOALL: "CCL_ALLTOALL",
}
"""The variable that says which algorithm serves which sizes."""

_BY_SHARD = frozenset({CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL})
"""Collectives whose size, as oneCCL sees it, is that of one rank's shard."""


@dataclass(frozen=True, slots=True)
class LibrarySizes:
    """elements:    (algorithm, position in the request's sizes) -> elements of the whole vector it is measured on
    environment: the variable that makes oneCCL choose the algorithms by these sizes
    """

    elements: Mapping[tuple[str, int], int]
    environment: Mapping[str, str]


def library_sizes(request: RunRequest, collective: CollectiveName) -> LibrarySizes:
    """Return at which sizes, each at least the one asked for, the algorithms of `request` are measured."""
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    ranks = request.topology.compute_count if collective in _BY_SHARD else 1
    elements: dict[tuple[str, int], int] = {}
    used: dict[int, str] = {}  # number of the range -> algorithm
    for position, size_bytes in enumerate(request.sizes_bytes):
        for algorithm in request.library:
            number = -(-size_bytes // (ranks * _RANGE_BYTES))
            while number in used:
                number += 1
            used[number] = algorithm
            elements[algorithm, position] = number * _RANGE_BYTES // element_bytes * ranks
    ranges = (f"{name}:{n * _RANGE_BYTES}-{n * _RANGE_BYTES + _RANGE_BYTES - 1}" for n, name in sorted(used.items()))
    return LibrarySizes(elements, {VARIABLES[collective]: ";".join(ranges)} if used else {})


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run of a program, or of a library algorithm, which has no number.

    name:     of its results
    size:     position in the request's sizes
    elements: of the whole vector
    parts:    into which every chunk is cut; the blocks go through their instructions once for each
    measured: whether its time counts; warm-up does not
    """

    name: str
    program: int | None
    size: int
    elements: int
    parts: int
    measured: bool


def run_order(request: RunRequest, library_sizes: LibrarySizes) -> list[RunEntry]:
    """Return every run of `request` in order: size by size, in each round every program and algorithm once."""
    shuffled = random.Random(request.seed)  # noqa: S311 - an order, not a secret
    entries: list[RunEntry] = []
    for size in range(len(request.sizes_bytes)):
        round_entries = [*_programs(request, size), *_library(request, size, library_sizes)]
        for number in range(-request.warmup, request.repeats):
            drawn = shuffled.sample(round_entries, len(round_entries))
            entries += [RunEntry(*entry, measured=number >= 0) for entry in drawn]
    return entries


def run_descriptions(order: list[RunEntry]) -> list[str]:
    """Return each run in words."""
    return [f"run {number}, {entry.name} on {entry.elements} elements" for number, entry in enumerate(order)]


def collect_measurements(
    request: RunRequest, order: list[RunEntry], seconds: list[float]
) -> dict[str, tuple[SizeMeasurement, ...]]:
    """Return the results by name; `seconds` of each entry of `order`. Every result must have been right."""
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    names = [*request.without_plans, *map(library_result, request.library)]
    times_s: dict[tuple[str, int], list[float]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for entry, time_s in zip(order, seconds, strict=True):
        sizes[entry.name, entry.size] = entry.elements * element_bytes
        if entry.measured:
            times_s.setdefault((entry.name, entry.size), []).append(time_s)
    return {
        name: tuple(
            SizeMeasurement(sizes[name, size], requested, tuple(times_s[name, size]), correct=True)
            for size, requested in enumerate(request.sizes_bytes)
        )
        for name in names
    }


def _programs(request: RunRequest, size: int) -> list[tuple[str, int | None, int, int, int]]:
    element_bytes = ELEMENT_TYPES[request.dtype].dtype.itemsize
    counts = [program.chunks for program in request.without_plans.values()]
    elements = divisible_size(request.sizes_bytes[size], element_bytes, counts) // element_bytes
    return [
        (name, number, size, elements, _parts(request, name, program, elements))
        for number, (name, program) in enumerate(request.without_plans.items())
    ]


def _parts(request: RunRequest, name: str, program: Program, elements: int) -> int:
    """Return into how many parts of at most the buffer's size a chunk is cut; one where the request names no buffer."""
    settings = request.settings.get(name)
    chunk_elements = elements // program.chunks
    if settings is None or settings.buffer_bytes is None:
        return 1
    parts = math.ceil(chunk_elements * ELEMENT_TYPES[request.dtype].dtype.itemsize / settings.buffer_bytes)
    return min(parts, chunk_elements)


def _library(request: RunRequest, size: int, sizes: LibrarySizes) -> list[tuple[str, int | None, int, int, int]]:
    return [(library_result(name), None, size, sizes.elements[name, size], 1) for name in request.library]


Words = Iterable[str | int | float]

START_LIMIT_S = 30.0
"""How long the ranks may take to find one another, before the time limit of the request counts."""


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Misbehaviour of one rank on purpose, for tests, in every run from number `run` on.

    kind: `crash`, `hang`, `wrong` (a wrong element in the result), or `slow` (a pause before each instruction)
    """

    rank: int
    kind: str
    run: int = 0
    pause_us: int = 0


def task_text(request: RunRequest, order: Sequence[RunEntry], rank: int, fault: InjectedFault | None = None) -> str:
    """Return the task of `rank`: every program, then every run in order."""
    programs = list(request.without_plans.values())
    collective = programs[0].collective
    channels = max(program.channels for program in programs)
    element_type = DataType[request.dtype.upper()].value
    words: list[str | int | float] = ["chorale-task-3", rank, len(programs[0].ranks), element_type]
    words += [collective.name.value, collective.root or 0, START_LIMIT_S, request.timeout_s, channels]
    words += _fault(fault if fault is not None and fault.rank == rank else None)
    words += [most_steps(programs, rank, order) if request.trace else 0]
    words += ["programs", len(programs)]
    for program in programs:
        words += _program(program, rank)
    words += ["runs", len(order)]
    for number, entry in enumerate(order):
        words += _run(request, programs, number, entry)
    return " ".join(map(str, [*words, "end\n"]))


def most_steps(programs: Sequence[Program], rank: int, order: Sequence[RunEntry]) -> int:
    """Return how many steps the longest run has on `rank` at most: each chunk of each part is one."""
    chunks = max(sum(step.count for block in one.ranks[rank].blocks for step in block.instructions) for one in programs)
    return chunks * max(entry.parts for entry in order)


def collect_traces(
    request: RunRequest, order: list[RunEntry], texts: Sequence[str]
) -> dict[str, tuple[ExecutionTrace, ...]]:
    """Return the trace of the median repetition for each program and size; `texts`: the files of all ranks."""
    rows = [{int(line.split(" ", 1)[0]): line for line in text.splitlines()} for text in texts]
    traces: dict[str, list[list[ExecutionTrace]]] = {
        name: [[] for _ in request.sizes_bytes] for name in request.without_plans
    }
    for number, entry in enumerate(order):
        if entry.measured and entry.program is not None and request.trace:
            ranks = tuple(_rank_trace(of_rank[number]) for of_rank in rows)
            size_bytes = entry.elements * ELEMENT_TYPES[request.dtype].dtype.itemsize
            traces[entry.name][entry.size].append(ExecutionTrace(entry.name, size_bytes, ranks))
    return {name: tuple(map(median_trace, sizes)) for name, sizes in traces.items() if all(sizes)}


def _rank_trace(line: str) -> RankTrace:
    """Return the trace of a line: run, start, end, processor time, then seven numbers for each step; times in ns."""
    _, start_ns, end_ns, cpu_ns, *numbers = map(int, line.split())
    steps = [numbers[first : first + 7] for first in range(0, len(numbers), 7)]
    return RankTrace.from_json(
        {"start_s": start_ns / 1e9, "end_s": end_ns / 1e9, "cpu_s": cpu_ns / 1e9, "steps": steps}
    )


def _fault(fault: InjectedFault | None) -> Words:
    return ("none", 0, 0) if fault is None else (fault.kind, fault.run, fault.pause_us)


def _program(program: Program, rank: int) -> Words:
    depth, ranks = QUEUE_DEPTH[program.protocol], len(program.ranks)
    words = encode_rank(program.collective, ranks, program.chunks, program.in_place, depth, program.ranks[rank])
    return ("words", len(words), *words)


def _run(request: RunRequest, programs: Sequence[Program], number: int, entry: RunEntry) -> Words:
    ranks = len(programs[0].ranks)
    pattern = DataPattern(ranks, number + 1, request.seed, ELEMENT_TYPES[request.dtype].exact_limit)
    yield from (int(entry.program is None), entry.program or 0, int(_is_in_place(programs, entry.program)))
    yield from (entry.elements, entry.parts, pattern.offset, pattern.bases, pattern.slopes)
    yield from ("weights", ranks, *pattern.weights().tolist())


def _is_in_place(programs: Sequence[Program], number: int | None) -> bool:
    """Return whether a run's input and output share memory; the library's where those of the first program do.

    oneCCL's broadcast has one buffer only.
    """
    if number is not None:
        return programs[number].in_place
    return programs[0].in_place or programs[0].collective.name is CollectiveName.BROADCAST
