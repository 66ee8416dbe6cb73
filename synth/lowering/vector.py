"""How the vector of a program is cut into chunks, and which transfers of the schedule tell where they go."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.columns import expand_intervals
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.transfers import Transfers

_UNDIVIDED = (CollectiveName.ALLREDUCE, CollectiveName.BROADCAST, CollectiveName.REDUCE)


@dataclass(frozen=True, slots=True, eq=False)
class VectorLayout:
    """Chunks of all data: those of a shard follow one another, and in it those of an instance.

    transfers: those of the schedule, or of its first shard alone where `is_whole`
    shards:    of all data; in an alltoall every rank has a vector of its own
    chunks_per_shard: of one instance
    """

    transfers: Transfers
    shards: int
    chunks_per_shard: int
    instances: int

    @property
    def chunks(self) -> int:
        """Number of chunks of all data."""
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
        return (shard * self.instances + instance) * self.chunks_per_shard


def vector_layout_of(schedule: Schedule, instances: int) -> VectorLayout:
    """Return how `instances` copies of `schedule` cut the vector.

    Where all shards travel alike and none belongs to a rank, as in trees for whole vectors, they are one: the fewer
    chunks, the more sizes can be divided by them, and the longer the messages. O(rows * log(rows)).
    """
    shards, transfers = schedule.shard_count, schedule.transfers
    if schedule.collective.name in _UNDIVIDED and _all_alike(transfers, shards):
        shards, transfers = 1, transfers.select(np.flatnonzero(transfers.shard == 0))
    return VectorLayout(transfers, shards, schedule.chunks_per_shard, instances)


def _all_alike(transfers: Transfers, shards: int) -> bool:
    if len(transfers) % shards or np.any(np.bincount(transfers.shard, minlength=shards) != len(transfers) // shards):
        return False
    columns = (transfers.reduce, transfers.hi, transfers.lo, transfers.route, transfers.step)
    order = np.lexsort((*columns, transfers.shard)).reshape(shards, -1)
    return all(bool((column[order] == column[order[0]]).all()) for column in columns)
