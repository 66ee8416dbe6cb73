"""The general replay: every chunk at every rank is the set of ranks whose contribution is in it.

It accepts any pattern of sums, such as the exchanges of recursive doubling, which do not flow along trees. The
fast replay (`chorale.synth.verify.replay`) decides first; this one costs N / 64 times as much time and memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix, Table
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.verify.conditions import ShardConditions, shard_conditions
from chorale.synth.verify.verified import ScheduleViolation

MAX_WORDS = 2**33
MEMORY_BYTES = 2**28

Sets = NDArray[np.uint64]
"""uint64[ranks, cells, words]: one bit per contributing rank; cell (shard - window start) * chunks + chunk."""


def fits_set_replay(schedule: Schedule) -> bool:
    """Whether `schedule` is small enough for this replay: about 2^33 words of sets are sent (1,024 ranks or so)."""
    sent = int((schedule.transfers.hi.astype(np.int64) - schedule.transfers.lo).sum())
    return sent * _words(schedule) <= MAX_WORDS


def set_replay_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Replay step by step and return every kind of fault (at most 20).

    A copied shard counts as complete from the start. O(N / 64) time per chunk sent.
    """
    conditions = shard_conditions(schedule)
    ranks, chunks = schedule.topology.compute_count, schedule.chunks_per_shard
    shards = max(1, MEMORY_BYTES // (8 * ranks * chunks * _words(schedule)))
    violations: list[ScheduleViolation] = []
    for first in range(0, schedule.shard_count, shards):
        last = min(first + shards, schedule.shard_count)
        held = _start(schedule, conditions, first, last)
        for numbers, rows in _steps(schedule, first, last):
            violations += _step_violations(numbers, rows, first, chunks, held)
        violations += _missing(conditions, held, first, last, chunks)
        if len(violations) >= 20:
            break
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


def _start(schedule: Schedule, terms: ShardConditions, first: int, last: int) -> Sets:
    ranks, chunks = schedule.topology.compute_count, schedule.chunks_per_shard
    held = np.zeros((ranks, (last - first) * chunks, _words(schedule)), dtype=np.uint64)
    for shard in range(first, last):
        cells = slice((shard - first) * chunks, (shard - first + 1) * chunks)
        if terms.starts[shard] < 0:
            held[:, cells] = _singletons(ranks)[:, None]
        else:
            held[terms.starts[shard], cells] = _everyone(ranks)
    return held


def _steps(schedule: Schedule, first: int, last: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Yield (row numbers, int32[rows, 6] of src, dst, shard, lo, hi, reduce) step by step."""
    transfers = schedule.transfers
    chosen = np.flatnonzero((transfers.shard >= first) & (transfers.shard < last))
    chosen = chosen[np.argsort(transfers.step[chosen], kind="stable")]
    some = transfers.select(chosen)
    links = schedule.topology.links
    src, dst = schedule.routes.sources(links)[some.route], schedule.routes.destinations(links)[some.route]
    columns = (src, dst, some.shard, some.lo, some.hi, some.reduce)
    rows = np.stack([column.astype(np.int32) for column in columns], axis=1)
    bounds = np.flatnonzero(np.diff(some.step.astype(np.int64), prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        yield chosen[low:high], rows[low:high]


def _step_violations(
    numbers: NDArray[np.int64], rows: NDArray[np.int32], first: int, chunks: int, held: Sets
) -> Iterator[ScheduleViolation]:
    sent = np.empty((int((rows[:, 4] - rows[:, 3]).sum()), held.shape[2]), dtype=np.uint64)
    early = _read(rows, first, chunks, held, sent)
    hollow, twice = _write(rows, first, chunks, held, sent)
    if early >= 0:
        yield ScheduleViolation("sent-before-received", f"row {numbers[early]} sends a chunk before it is there")
    if hollow >= 0:
        yield ScheduleViolation("reduced-into-nothing", f"row {numbers[hollow]} adds to a chunk where there is nothing")
    if twice >= 0:
        yield ScheduleViolation("reduced-twice", f"row {numbers[twice]} adds a contribution for the second time")


def _missing(terms: ShardConditions, held: Sets, first: int, last: int, chunks: int) -> Iterator[ScheduleViolation]:
    ranks = len(held)
    ends = np.repeat(terms.ends[first:last], chunks)
    required = (ends < 0) | (ends == np.arange(ranks)[:, None])
    for rank, cell in np.argwhere(required & (held != _everyone(ranks)).any(axis=2))[:20].tolist():
        shard, chunk = divmod(cell, chunks)
        yield ScheduleViolation("not-delivered", f"chunk {chunk} of shard {first + shard} is missing at rank {rank}")


@inlined
def _is_empty(members: NDArray[np.uint64]) -> bool:
    union = np.uint64(0)
    for word in range(len(members)):
        union |= members[word]
    return bool(union == 0)


@inlined
def _overlap(first: NDArray[np.uint64], second: NDArray[np.uint64]) -> bool:
    shared = np.uint64(0)
    for word in range(len(first)):
        shared |= first[word] & second[word]
    return bool(shared != 0)


@compiled
def _read(rows: Matrix[np.int32], first: int, chunks: int, held: Table[np.uint64], sent: Matrix[np.uint64]) -> int:
    """Copy what each row sends to `sent`, chunk by chunk; return a row that sends nothing or -1."""
    early = -1
    position = 0
    for index in range(len(rows)):
        base = (rows[index, 2] - first) * chunks
        for cell in range(base + rows[index, 3], base + rows[index, 4]):
            contribution = held[rows[index, 0], cell]
            sent[position] = contribution
            if _is_empty(contribution):
                early = index
            position += 1
    return early


@compiled
def _write(
    rows: Matrix[np.int32], first: int, chunks: int, held: Table[np.uint64], sent: Matrix[np.uint64]
) -> tuple[int, int]:
    """Add or store what was sent; return (a row that adds where there is nothing, a row that adds twice), or -1."""
    hollow = twice = -1
    position = 0
    for index in range(len(rows)):
        base = (rows[index, 2] - first) * chunks
        for cell in range(base + rows[index, 3], base + rows[index, 4]):
            present, contribution = held[rows[index, 1], cell], sent[position]
            position += 1
            if _is_empty(contribution):
                continue
            if rows[index, 5] == 0:
                present[:] = contribution
                continue
            if _is_empty(present):
                hollow = index
            if _overlap(present, contribution):
                twice = index
            for word in range(len(present)):
                present[word] |= contribution[word]
    return hollow, twice
