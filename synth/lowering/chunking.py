"""The same schedule in chunks of another size: finer ones stream better, coarser ones divide more vectors."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.transfers import ColumnBounds


def min_chunks(schedule: Schedule) -> int:
    """Return the fewest chunks per shard in which all transfers of `schedule` begin and end between chunks. O(rows)."""
    bounds = np.concatenate([schedule.transfers.lo, schedule.transfers.hi])
    return schedule.chunks_per_shard // gcd(schedule.chunks_per_shard, int(np.gcd.reduce(bounds, initial=0)))


def rechunked(schedule: Schedule, chunks: int | None) -> Schedule:
    """Return `schedule` with so many chunks per shard; None leaves them as they are.

    What goes where, and so every cost, stays exactly the same. InvalidInput if `chunks` is not a multiple of
    `least_chunks`.
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
    return replace(schedule, chunks_per_shard=chunks, transfers=moved)
