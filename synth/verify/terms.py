"""What a collective demands of every shard: where it starts, where it must end, and whether it is a sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.schedule.schedule import Schedule, shard_count


@dataclass(frozen=True, slots=True, eq=False)
class ShardConditions:
    """starts: rank that holds the shard at the start (copies), or -1 where every rank holds a contribution.

    sum_ends: rank where the sum must be complete, or -1 for any one rank (allreduce, where copies follow).
    ends: rank that must hold the shard in the end, or -1 for every rank.
    """

    starts: NDArray[np.int32]
    sum_ends: NDArray[np.int32]
    ends: NDArray[np.int32]
    reduces: bool
    copies: bool


def shard_conditions(schedule: Schedule) -> ShardConditions:
    """Return the demands of the schedule's collective, one entry per shard."""
    ranks = schedule.topology.compute_count
    shards = np.arange(shard_count(schedule.topology, schedule.collective), dtype=np.int32)
    anywhere = np.full(len(shards), -1, dtype=np.int32)
    root = np.full(len(shards), schedule.collective.root or 0, dtype=np.int32)
    name = schedule.collective.name
    if name == CollectiveName.ALLGATHER:
        return ShardConditions(shards, anywhere, anywhere, reduces=False, copies=True)
    if name == CollectiveName.BROADCAST:
        return ShardConditions(root, anywhere, anywhere, reduces=False, copies=True)
    if name == CollectiveName.ALLTOALL:
        return ShardConditions(shards // ranks, anywhere, shards % ranks, reduces=False, copies=True)
    if name == CollectiveName.REDUCE_SCATTER:
        return ShardConditions(anywhere, shards, shards, reduces=True, copies=False)
    if name == CollectiveName.REDUCE:
        return ShardConditions(anywhere, root, root, reduces=True, copies=False)
    return ShardConditions(anywhere, anywhere, anywhere, reduces=True, copies=True)
