"""Divides a program's vector into chunks, and expresses the schedule's transfers in these chunks.

The schedule's chunks can be split or merged. With small chunks, data can be pipelined better; with few chunks, more
vector sizes can be divided evenly. If shards differ in size, they are stored in index order, as is the default in MPI:
the input of an alltoallv begins with the shard for rank 0, and its output with the shard from rank 0. In a dispatch, a
source stores each shard once, and each target stores the shards that it receives; a combine does the opposite. A
program's vector size is the size of the longest buffer of any rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import (
    MAX_CONTRIBUTIONS,
    Cell,
    Collective,
    CollectiveName,
    CustomCollective,
    RequiredChunk,
    custom_collective,
)
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.programs.memory import BufferShape
from chorale.synth.schedule.schedule import ColumnBounds, Schedule, Transfers

Column = NDArray[np.int64]
NarrowColumn = NDArray[np.int32]
"""Columns with 32 bits per entry to save memory; all counts in programs are far below 2^31."""
_UNDIVIDED = (CollectiveName.ALLREDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE)


def expand_intervals(first: Column, length: Column | NarrowColumn) -> tuple[Column, Column]:
    """Return columns (i, integer): for each i, the integers from `first[i]` to `first[i] + length[i] - 1`."""
    lengths = length.astype(np.int64)
    row = np.repeat(np.arange(len(first)), lengths)
    within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, first[row] + within


def min_chunks(schedule: Schedule) -> int:
    """Return the smallest number of chunks per shard for which every transfer still moves whole chunks. O(rows)."""
    sizes = np.array(schedule.collective.sizes or (), dtype=np.int64)
    bounds = np.concatenate([schedule.transfers.lo, schedule.transfers.hi, sizes])
    return schedule.chunks_per_shard // gcd(schedule.chunks_per_shard, int(np.gcd.reduce(bounds, initial=0)))


def rechunked(schedule: Schedule, chunks: int | None) -> Schedule:
    """Return `schedule` with `chunks` chunks per shard, or as it is if `chunks` is None. The cost does not change.

    Raises InvalidInput if `chunks` is not a multiple of `min_chunks`.
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


@dataclass(frozen=True, slots=True, eq=False)
class VectorLayout:
    """The numbering of a program's chunks: by shard, then instance (copy of the schedule), then position.

    transfers: the schedule's transfers; if all shards were merged into one, only the first shard's transfers
    shards:    total number of shards; in an alltoall, every rank has different shards
    chunks_per_shard: chunks per shard in each of the `instances`
    sizes:     int64[shards], number of chunks of each shard; None unless the collective is uneven
    """

    transfers: Transfers
    shards: int
    chunks_per_shard: int
    instances: int
    sizes: NDArray[np.int64] | None = None

    @property
    def chunks(self) -> int:
        """Total number of chunks in all shards and instances."""
        if self.sizes is not None:
            return int(self.sizes.sum())
        return self.shards * self.instances * self.chunks_per_shard

    @property
    def is_single_shard(self) -> bool:
        return self.shards == 1

    def split_transfers(self, longest: int) -> VectorLayout:
        """Return the layout with each transfer split into transfers of at most `longest` chunks. O(rows)."""
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
        """Return the index of the first chunk of each shard in `shard`, in copy number `instance` of the schedule."""
        if self.sizes is not None:
            return (np.cumsum(self.sizes) - self.sizes)[shard]
        return (shard * self.instances + instance) * self.chunks_per_shard


def vector_layout_of(schedule: Schedule, instances: int) -> VectorLayout:
    """Return the vector's division into chunks for `instances` copies of `schedule`. O(rows * log(rows)).

    If all shards take the same paths and none belongs to a rank, as in trees for the complete vector, they are merged
    into one shard. With fewer chunks, more vector sizes can be divided evenly, and messages are longer.
    """
    shards, transfers = schedule.shard_count, schedule.transfers
    if schedule.collective.name in _UNDIVIDED and _all_alike(transfers, shards):
        shards, transfers = 1, transfers.select(np.flatnonzero(transfers.shard == 0))
    sizes = schedule.collective.sizes
    if sizes is None:
        return VectorLayout(transfers, shards, schedule.chunks_per_shard, instances)
    if instances != 1:
        raise InvalidInput(
            "a collective of given sizes cannot be lowered to {}", f"{instances} instances", "use --instances 1"
        )
    return VectorLayout(transfers, shards, schedule.chunks_per_shard, 1, np.array(sizes, dtype=np.int64))


def _all_alike(transfers: Transfers, shards: int) -> bool:
    if len(transfers) % shards or np.any(np.bincount(transfers.shard, minlength=shards) != len(transfers) // shards):
        return False
    columns = (transfers.step, transfers.route, transfers.lo, transfers.hi, transfers.reduce)
    sums = (np.bincount(transfers.shard, weights=column, minlength=shards) for column in columns)
    if any(bool((each != each[0]).any()) for each in sums):
        return False
    order = np.lexsort((*reversed(columns), transfers.shard)).reshape(shards, -1)
    return all(bool((column[order] == column[order[0]]).all()) for column in columns)


def options_for_sizes(
    schedule: Schedule, options: LoweringOptions, sizes_bytes: Sequence[int], granule_bytes: int
) -> LoweringOptions:
    """Return `options` with instance and chunk counts for which all of `sizes_bytes` can be divided into equal chunks.

    Runtimes silently fall back to their own algorithm for vector sizes that are not multiples of the chunk count. The
    result has as many instances as possible and, given these, as many chunks per shard as possible. Neither number
    exceeds the one in `options` (or in the schedule).

    Args:
        schedule: The schedule.
        options: Upper limits on instances and chunks; all other options are kept.
        sizes_bytes: Vector sizes that the program must support.
        granule_bytes: Chunk sizes must be multiples of this: the element size, or the runtime's alignment.

    Raises:
        InvalidInput: A size is not divisible even with one instance and the fewest chunks; the message names the
            nearest divisible sizes.
    """
    least = min_chunks(schedule)
    is_alltoall = schedule.collective.name == CollectiveName.ALLTOALL
    shards = vector_layout_of(schedule, 1).shards // (schedule.topology.compute_count if is_alltoall else 1)
    step = shards * least * granule_bytes
    common = gcd(*sizes_bytes)
    if common % step:
        wrong = next(size for size in sizes_bytes if size % step)
        near = " or ".join(str(size) for size in (wrong // step * step, -(-wrong // step) * step) if size)
        rule = f"sizes must be multiples of {step} bytes: {step // granule_bytes} chunks of {granule_bytes} bytes each"
        raise InvalidInput(rule, wrong, f"use {near} bytes, or a schedule with other chunks")
    instances = _largest_divisor(common // step, options.instances)
    largest = (options.chunks or schedule.chunks_per_shard) // least
    chunks = least * _largest_divisor(common // (step * instances), largest)
    low, high = min(sizes_bytes), max(sizes_bytes)
    return replace(options, instances=instances, chunks=chunks, min_bytes=low, max_bytes=high)


def _largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of `number` that is at most `most`. O(most)."""
    return next(divisor for divisor in range(most, 0, -1) if number % divisor == 0)


@dataclass(frozen=True, slots=True)
class UnevenShape(BufferShape):
    """Buffers of all ranks in an uneven collective. Shard i has `sizes[i]` chunks.

    inputs, outputs: for each rank, the shards that it holds initially and those that it must hold at the end, in buffer
                     order
    """

    sizes: tuple[int, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    outputs: tuple[tuple[int, ...], ...] = ()

    @property
    def identities(self) -> int:
        return sum(self.sizes)

    def initial_chunks(self, rank: int) -> Column:
        """Return the indices of the chunks that `rank` holds initially, in buffer order."""
        return self._chunks_of(self.inputs[rank])

    def result_chunks(self, rank: int) -> Column:
        """Return the indices of the chunks that `rank` must hold at the end, in buffer order."""
        return self._chunks_of(self.outputs[rank])

    def _chunks_of(self, shards: tuple[int, ...]) -> Column:
        sizes, chosen = np.array(self.sizes, dtype=np.int64), np.array(shards, dtype=np.int64)
        return expand_intervals((np.cumsum(sizes) - sizes)[chosen], sizes[chosen])[1]


def buffers_of(schedule: Schedule, vector: VectorLayout, in_place: bool) -> tuple[Collective, BufferShape]:
    """Return the collective and buffer sizes of a program for `schedule`. An uneven collective becomes a custom one."""
    collective, ranks = schedule.collective, schedule.topology.compute_count
    if collective.name.is_uneven:
        # the shards that each rank has at the start, and those that it has at the end
        sizes, everyone = collective.sizes or (), range(ranks)
        sides: tuple[list[list[int]], ...] = ([[] for _ in everyone], [[] for _ in everyone])
        moved = 0
        for shard, size in enumerate(sizes):
            if collective.members is not None:
                source, *targets = collective.members[shard]
                ends: tuple[Iterable[int], ...] = [source], targets
            elif collective.is_alltoall:
                ends = [shard // ranks], [shard % ranks]
            else:
                ends = [shard], everyone
            for side, members in zip(sides, ends[::-1] if collective.reduces else ends, strict=True):
                for rank in members:
                    side[rank].append(shard)
            moved += size * len(list(ends[1]))
        if moved > MAX_CONTRIBUTIONS:
            rule = f"a program with given shard sizes must have at most {MAX_CONTRIBUTIONS} contributions to chunks"
            raise InvalidInput(rule, f"{moved} of {collective}", "plan it with fewer --chunks")
        longest = max(sum(sizes[shard] for shard in held) for side in sides for held in side)
        inputs, outputs = (tuple(map(tuple, side)) for side in sides)
        shape = UnevenShape(collective.name, longest, ranks, False, sizes=sizes, inputs=inputs, outputs=outputs)
        # for each output chunk, the input chunks whose sum it must be
        begins: list[list[Cell]] = [[] for _ in shape.sizes]  # where each shard begins in the inputs that hold it
        lengths = [0, 0]
        for rank, shards in enumerate(shape.inputs):
            place = 0
            for shard in shards:
                begins[shard].append((rank, place))
                place += shape.sizes[shard]
            lengths[0] = max(lengths[0], place)
        required: list[RequiredChunk] = []
        for rank, shards in enumerate(shape.outputs):
            place = 0
            for shard in shards:
                for chunk in range(shape.sizes[shard]):
                    sources = tuple((peer, first + chunk) for peer, first in begins[shard])
                    required.append(RequiredChunk(rank, place + chunk, sources))
                place += shape.sizes[shard]
            lengths[1] = max(lengths[1], place)
        return custom_collective(
            CustomCollective(shape.collective.value, shape.ranks, lengths[0], lengths[1], tuple(required))
        ), shape
    chunks = vector.chunks // (ranks if collective.is_alltoall else 1)
    return collective, BufferShape(collective.name, chunks, ranks, in_place, collective.root)
