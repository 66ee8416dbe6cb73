"""What is run in what order: programs and library algorithms interleaved, in rounds, as the seed says."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from chorale.runners.api import RunRequest, SizeMeasurement, library_result
from chorale.runners.element_types import ELEMENT_TYPES
from chorale.runners.oneccl.library import LibrarySizes
from chorale.runners.sizes import divisible_size
from chorale.synth.programs.program import Program


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
        one_round = [*_programs(request, size), *_library(request, size, library_sizes)]
        for number in range(-request.warmup, request.repeats):
            drawn = shuffled.sample(one_round, len(one_round))
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
    names = [*request.programs, *map(library_result, request.library)]
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
    counts = [program.chunks for program in request.programs.values()]
    elements = divisible_size(request.sizes_bytes[size], element_bytes, counts) // element_bytes
    return [
        (name, number, size, elements, _parts(request, name, program, elements))
        for number, (name, program) in enumerate(request.programs.items())
    ]


def _parts(request: RunRequest, name: str, program: Program, elements: int) -> int:
    """Return into how many parts of at most the buffer's size a chunk is cut; one where the request names no buffer."""
    settings = request.settings.get(name)
    chunk_elements = elements // program.chunks
    if settings is None or settings.buffer_bytes is None:
        return 1
    wanted = math.ceil(chunk_elements * ELEMENT_TYPES[request.dtype].dtype.itemsize / settings.buffer_bytes)
    return min(wanted, chunk_elements)


def _library(request: RunRequest, size: int, sizes: LibrarySizes) -> list[tuple[str, int | None, int, int, int]]:
    return [(library_result(name), None, size, sizes.elements[name, size], 1) for name in request.library]
