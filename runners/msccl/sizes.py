"""Sizes of test programs: which calls a program serves, and how a list of sizes is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from chorale.synth.collective import CollectiveName
from chorale.synth.programs.memory import SPLIT_BY_RANK
from chorale.synth.programs.program import Program
from chorale.synth.targets.registry import target_named

ALIGNMENT_BYTES = 16
"""The test programs round what each rank of a sharded collective gets down to a multiple of this."""


@dataclass(frozen=True, slots=True)
class SizeProgression:
    """Sizes that one command line of a test program names: each is `factor` times the one before."""

    sizes_bytes: tuple[int, ...]
    factor: int


def served_size(size_bytes: int, element_bytes: int, programs: Iterable[Program]) -> int:
    """Return the smallest size >= `size_bytes` that all `programs`, which must be for one collective, can serve.

    The elements must fill the chunks, else the runtime falls back without a word. Of sharded collectives, even those
    that each rank gets must: RCCL asks for that, the others for less.
    """
    granule = element_bytes
    for program in programs:
        ranks = len(program.ranks)
        if program.collective.name in SPLIT_BY_RANK:
            share = math.lcm(element_bytes * program.chunks, ALIGNMENT_BYTES)
            granule = math.lcm(granule, ranks * share)
        else:
            granule = math.lcm(granule, element_bytes * program.chunks)
    return -(-size_bytes // granule) * granule


def size_mismatch(program: Program, size_bytes: int, element_bytes: int) -> str | None:
    """Return in one line why a runtime would take its own algorithm for calls of this size, None if it would not."""
    if size_bytes != served_size(size_bytes, element_bytes, [program]):
        return f"its elements cannot be cut into {program.chunks} chunks"
    most = program.max_bytes or target_named(program.target).limits.largest_max_bytes
    if size_bytes < program.min_bytes or (most is not None and size_bytes > most):
        return f"it serves {program.min_bytes} to {'any number of' if most is None else most} bytes"
    if program.in_place and program.collective.name is CollectiveName.ALLTOALL:
        return "calls of alltoall are never in place, and it serves no others"
    return None


def size_progressions(sizes_bytes: Sequence[int]) -> list[SizeProgression]:
    """Return ranges that together are exactly `sizes_bytes`, in rising order; as few as the greedy way finds."""
    left = sorted(set(sizes_bytes))
    ranges = []
    while left:
        factors = [size // left[0] for size in left[1:] if size % left[0] == 0] or [2]
        series = max((_series(left[0], factor, set(left)) for factor in factors), key=len)
        ranges.append(SizeProgression(tuple(series), series[1] // series[0] if len(series) > 1 else 2))
        left = [size for size in left if size not in series]
    return ranges


def _series(first: int, factor: int, sizes: Set[int]) -> list[int]:
    series = [first]
    while series[-1] * factor in sizes:
        series.append(series[-1] * factor)
    return series
