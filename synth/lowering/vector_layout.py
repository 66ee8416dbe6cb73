"""How the vector of a program is cut into chunks, and which transfers of the schedule say where they go.

Chunks can be refined or merged: finer ones stream better, coarser ones divide more vector sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.ordering import sorted_order
from chorale.synth.schedule.schedule import ColumnBounds, Schedule, Transfers

Column = NDArray[np.int64]
NarrowColumn = NDArray[np.int32]
"""What is held for all ranks at once: half as large. No count of a program comes near 2^31."""


def expand_intervals(first: Column, length: Column | NarrowColumn) -> tuple[Column, Column]:
    """Return, for every member of every interval in order: the number of the interval, and the member."""
    lengths = length.astype(np.int64)
    row = np.repeat(np.arange(len(first)), lengths)
    within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, first[row] + within


def min_chunks(schedule: Schedule) -> int:
    """Return the fewest chunks per shard in which all transfers of `schedule` begin and end between chunks. O(rows)."""
    sizes = np.array(schedule.collective.sizes or (), dtype=np.int64)
    bounds = np.concatenate([schedule.transfers.lo, schedule.transfers.hi, sizes])
    return schedule.chunks_per_shard // gcd(schedule.chunks_per_shard, int(np.gcd.reduce(bounds, initial=0)))


def rechunked(schedule: Schedule, chunks: int | None) -> Schedule:
    """Return `schedule` with so many chunks per shard; None leaves them as they are.

    What goes where, and so every cost, stays exactly the same. InvalidInput if `chunks` is not a multiple of
    `min_chunks`.
    """
    if chunks is None or chunks == schedule.chunks_per_shard:
        return schedule
    least = min_chunks(schedule)
    if chunks < 1 or chunks % least:
        near = max(1, round(chunks / least)) * least
        raise InvalidInput(f"chunks of a shard must be a multiple of {least}", chunks, f"use {near}")
    transfers = schedule.transfers
    low, high = (side.astype(np.int64) * chunks // schedule.chunks_per_shard for side in (transfers.lo, transfers.hi))
    bounds = ColumnBounds(schedule.steps, len(schedule.routes), schedule.shard_count, chunks)
    moved = bounds.pack([transfers.step, transfers.route, transfers.shard, low, high, transfers.reduce])
    collective = schedule.collective
    if collective.sizes is not None:
        sizes = tuple(size * chunks // schedule.chunks_per_shard for size in collective.sizes)
        collective = replace(collective, sizes=sizes)
    return replace(schedule, collective=collective, chunks_per_shard=chunks, transfers=moved)


_UNDIVIDED = (CollectiveName.ALLREDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class VectorLayout:
    """Chunks of all data: those of a shard follow one another, and in it those of an instance.

    transfers: those of the schedule, or of its first shard alone where the vector is one shard (`is_single_shard`)
    shards:    of all data; in an alltoall every rank has a different vector
    chunks_per_shard: of one instance
    sizes:     int64[shards], the chunks of each shard of an uneven collective
    """

    transfers: Transfers
    shards: int
    chunks_per_shard: int
    instances: int
    sizes: NDArray[np.int64] | None = None

    @property
    def chunks(self) -> int:
        """Number of chunks of all data."""
        if self.sizes is not None:
            return int(self.sizes.sum())
        return self.shards * self.instances * self.chunks_per_shard

    @property
    def is_single_shard(self) -> bool:
        """Whether the vector is one shard."""
        return self.shards == 1

    def split_transfers(self, longest: int) -> VectorLayout:
        """Return the same with transfers of at most `longest` chunks. O(rows)."""
        transfers = self.transfers
        length = transfers.hi.astype(np.int64) - transfers.lo
        if length.max(initial=0) <= longest:
            return self
        row, part = expand_intervals(np.zeros(len(length), dtype=np.int64), -(-length // longest))
        rows = transfers.select(row)
        low = rows.lo + part * longest
        high = np.minimum(low + longest, rows.hi)
        kind = rows.hi.dtype
        return replace(self, transfers=replace(rows, lo=low.astype(kind), hi=high.astype(kind)))

    def first(self, shard: NDArray[np.int64], instance: int) -> NDArray[np.int64]:
        """Return the first chunk of each shard in the copy `instance` of the schedule."""
        if self.sizes is not None:
            return (np.cumsum(self.sizes) - self.sizes)[shard]
        return (shard * self.instances + instance) * self.chunks_per_shard


def vector_layout_of(schedule: Schedule, instances: int) -> VectorLayout:
    """Return how `instances` copies of `schedule` cut the vector.

    Where all shards travel alike and none belongs to a rank, as in trees for whole vectors, they are one: the fewer
    chunks, the more sizes can be divided by them, and the longer the messages. O(rows * log(rows)).
    """
    shards, transfers = schedule.shard_count, schedule.transfers
    if schedule.collective.name in _UNDIVIDED and _all_alike(transfers, shards):
        shards, transfers = 1, transfers.select(np.flatnonzero(transfers.shard == 0))
    sizes = schedule.collective.sizes
    if sizes is None:
        return VectorLayout(transfers, shards, schedule.chunks_per_shard, instances)
    if instances != 1:
        raise InvalidInput("a collective of given sizes is lowered once", f"{instances} instances", "use --instances 1")
    return VectorLayout(transfers, shards, schedule.chunks_per_shard, 1, np.array(sizes, dtype=np.int64))


def _all_alike(transfers: Transfers, shards: int) -> bool:
    if len(transfers) % shards or np.any(np.bincount(transfers.shard, minlength=shards) != len(transfers) // shards):
        return False
    columns = (transfers.step, transfers.route, transfers.lo, transfers.hi, transfers.reduce)
    sums = (np.bincount(transfers.shard, weights=column, minlength=shards) for column in columns)
    if any(bool((each != each[0]).any()) for each in sums):
        return False
    order = sorted_order((transfers.shard, *columns)).reshape(shards, -1)
    return all(bool((column[order] == column[order[0]]).all()) for column in columns)


def chunks_of_vector(schedule: Schedule, instances: int) -> int:
    """Return N, the chunks of the vector of one rank in a program of so many instances."""
    return _shards_of_vector(schedule) * instances * schedule.chunks_per_shard


def options_for_sizes(
    schedule: Schedule, options: LoweringOptions, sizes_bytes: Sequence[int], granule_bytes: int
) -> LoweringOptions:
    """Return `options` with instances and chunks such that all `sizes_bytes` can be cut into equal chunks of whole
    granules (elements, or what a runtime aligns to), and with the range of these sizes.

    There are as many instances as can be, up to those asked for, and then as many chunks per shard, up to those asked
    for (without a wish, those of the schedule): fewer where chunks of the schedule can be joined, see
    `chorale.synth.lowering.vector_layout`. Runtimes take their own algorithm, without notice, for sizes that N does not
    divide. InvalidInput, with the nearest sizes that can be cut, if the fewest chunks of one instance cannot either.
    """
    least = min_chunks(schedule)
    step = _shards_of_vector(schedule) * least * granule_bytes
    common = gcd(*sizes_bytes)
    if common % step:
        raise _no_fit(step // granule_bytes, granule_bytes, sizes_bytes)
    instances = _largest_divisor(common // step, options.instances)
    largest = (options.chunks or schedule.chunks_per_shard) // least
    chunks = least * _largest_divisor(common // (step * instances), largest)
    low, high = min(sizes_bytes), max(sizes_bytes)
    return replace(options, instances=instances, chunks=chunks, min_bytes=low, max_bytes=high)


def _shards_of_vector(schedule: Schedule) -> int:
    ranks = schedule.topology.compute_count
    return vector_layout_of(schedule, 1).shards // (ranks if schedule.collective.name == CollectiveName.ALLTOALL else 1)


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`. O(most)."""
    return next(divisor for divisor in range(most, 0, -1) if number % divisor == 0)


def _no_fit(chunks: int, granule_bytes: int, sizes_bytes: Sequence[int]) -> InvalidInput:
    step = chunks * granule_bytes
    wrong = next(size for size in sizes_bytes if size % step)
    near = " or ".join(str(size) for size in (wrong // step * step, -(-wrong // step) * step) if size)
    rule = f"sizes must be multiples of {step} bytes: {chunks} chunks of whole {granule_bytes} bytes"
    return InvalidInput(rule, wrong, f"use {near} bytes, or a schedule with other chunks")
