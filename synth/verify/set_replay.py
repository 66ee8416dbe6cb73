"""The general replay: every chunk at every rank is the set of ranks whose contribution is in it.

It accepts any pattern of sums, such as the exchanges of recursive doubling, which do not flow along trees. The
fast replay (`chorale.synth.verify.replay`) decides first; this one costs N / 64 times as much time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.verify.conditions import ChunkIntervals, ShardConditions, cell_text, shard_conditions
from chorale.synth.verify.verified import ScheduleViolation

MAX_WORDS = 2**33
MEMORY_BYTES = 2**28

Sets = NDArray[np.uint64]
"""uint64[ranks, cells, words]: one bit per contributing rank; cells of a window of shards, as in `ChunkIntervals`."""


def fits_set_replay(schedule: Schedule) -> bool:
    """Whether `schedule` is small enough for this replay: about 2^33 words of sets are sent (1,024 ranks or so)."""
    lo, hi = ChunkIntervals.of(schedule).interval(schedule.transfers)
    return int((hi.astype(np.int64) - lo).sum()) * _words(schedule) <= MAX_WORDS


def set_replay_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Replay step by step and return every kind of fault (at most 20).

    A copied shard counts as complete from the start. O(N / 64) time per chunk sent.
    """
    conditions = shard_conditions(schedule)
    cells = ChunkIntervals.of(schedule)
    most = MEMORY_BYTES // (8 * schedule.topology.compute_count * _words(schedule))
    violations: list[ScheduleViolation] = []
    first = 0
    while first < schedule.shard_count and len(violations) < 20:
        end = int(np.searchsorted(cells.offsets, cells.offsets[first] + most, side="right")) - 1
        last = max(first + 1, end)
        held = _start(schedule, conditions, cells, first, last)
        for numbers, rows in _steps(schedule, cells, first, last):
            violations += _step_violations(numbers, rows, held)
        violations += _missing(conditions, held, cells, first, last)
        first = last
    return violations[:20]


def _words(schedule: Schedule) -> int:
    return -(-schedule.topology.compute_count // 64)


def _everyone(ranks: int) -> NDArray[np.uint64]:
    """Return uint64[words]: the set of all ranks."""
    members: NDArray[np.uint64] = _singletons(ranks).sum(axis=0, dtype=np.uint64)
    return members


def _singletons(ranks: int) -> NDArray[np.uint64]:
    """Return uint64[ranks, words]: the set of each rank alone."""
    sets = np.zeros((ranks, -(-ranks // 64)), dtype=np.uint64)
    rank = np.arange(ranks)
    sets[rank, rank // 64] = np.uint64(1) << (rank % 64).astype(np.uint64)
    return sets


def _start(schedule: Schedule, terms: ShardConditions, cells: ChunkIntervals, first: int, last: int) -> Sets:
    ranks, begin = schedule.topology.compute_count, cells.offsets[first]
    held = np.zeros((ranks, int(cells.offsets[last] - begin), _words(schedule)), dtype=np.uint64)
    for shard in range(first, last):
        of_shard = slice(cells.offsets[shard] - begin, cells.offsets[shard + 1] - begin)
        if terms.starts[shard] < 0:
            held[:, of_shard] = _singletons(ranks)[:, None]
        else:
            held[terms.starts[shard], of_shard] = _everyone(ranks)
    return held


def _steps(
    schedule: Schedule, cells: ChunkIntervals, first: int, last: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Yield (row numbers, int32[rows, 5] of src, dst, first cell, the one after the last, reduce) step by step."""
    transfers = schedule.transfers
    chosen = np.flatnonzero((transfers.shard >= first) & (transfers.shard < last))
    chosen = chosen[np.argsort(transfers.step[chosen], kind="stable")]
    some = transfers.select(chosen)
    links = schedule.topology.links
    src, dst = schedule.routes.sources(links)[some.route], schedule.routes.destinations(links)[some.route]
    begin = cells.offsets[some.shard] - cells.offsets[first]
    columns = (src, dst, *(begin + cell for cell in cells.interval(some)), some.reduce)
    rows = np.stack([column.astype(np.int32) for column in columns], axis=1)
    bounds = np.flatnonzero(np.diff(some.step.astype(np.int64), prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        yield chosen[low:high], rows[low:high]


def _step_violations(numbers: NDArray[np.int64], rows: NDArray[np.int32], held: Sets) -> Iterator[ScheduleViolation]:
    early, hollow, twice = native.replay_step(rows, held)
    if early >= 0:
        yield ScheduleViolation("sent-before-received", f"row {numbers[early]} sends a chunk before it is there")
    if hollow >= 0:
        yield ScheduleViolation("reduced-into-nothing", f"row {numbers[hollow]} adds to a chunk where there is nothing")
    if twice >= 0:
        yield ScheduleViolation("reduced-twice", f"row {numbers[twice]} adds a contribution for the second time")


def _missing(
    terms: ShardConditions, held: Sets, cells: ChunkIntervals, first: int, last: int
) -> Iterator[ScheduleViolation]:
    ranks = len(held)
    ends = np.repeat(terms.ends[first:last], np.diff(cells.offsets[first : last + 1]))
    required = (ends < 0) | (ends == np.arange(ranks)[:, None])
    for rank, cell in np.argwhere(required & (held != _everyone(ranks)).any(axis=2))[:20].tolist():
        text = cell_text(cells, int(cells.offsets[first]), rank, cell, "is missing")
        yield ScheduleViolation("not-delivered", text)
