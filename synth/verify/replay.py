"""Kernels that replay a schedule over all cells at once, in any order of rows (`chorale.synth.verify.verify`).

Copying collectives store for every (rank, cell) the step after which the cell is there. Reducing ones store the step
in which a rank hands its partial sum on: if every rank but one hands on once, to a rank that hands on later,
then every contribution reaches the last one exactly once, because times grow along the way.

Times are stored as step + 1, so 0 means "from the start"; `NEVER` means not at all. Tables hold the cells of a
window of shards, `first` to `last - 1`; shard s has the cells `offsets[s] - offsets[first]` and so on there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled
from chorale.synth.kernels.types import Matrix

NEVER = 65535
Times = NDArray[np.uint16]
Ranks = NDArray[np.int32]
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]
"""int32[7, rows]: step, src, dst, shard, first cell within the shard, the one after the last, reduce."""


@compiled
def record_times(
    rows: Matrix[np.int32],
    first: int,
    last: int,
    offsets: Numbers,
    size: Numbers,
    arrival: Matrix[np.uint16],
    handed_on: Matrix[np.uint16],
    fed: Matrix[np.uint16],
) -> tuple[int, int, int]:
    """Note when cells of shards `first` to `last - 1` arrive, are handed on and are fed.

    size: chunks per cell of all shards; empty where all are one. arrival: earliest arrival of what is finished
    (copies); handed_on: when a rank sent its partial sum; fed: when a rank last received a partial sum. Returns
    (chunks delivered where they were already, cells of partial sums handed on twice, a row that did so or -1).
    """
    duplicates = twice = 0
    culprit = -1
    for index in range(rows.shape[1]):
        shard = rows[3, index]
        if shard < first or shard >= last:
            continue
        time = np.uint16(rows[0, index] + 1)
        src, dst = rows[1, index], rows[2, index]
        base = offsets[shard] - offsets[first]
        for cell in range(base + rows[4, index], base + rows[5, index]):
            if rows[6, index]:
                if handed_on[src, cell] != 0:
                    twice += 1
                    culprit = index
                handed_on[src, cell] = time
                fed[dst, cell] = max(fed[dst, cell], time)
            else:
                if arrival[dst, cell] != np.uint16(NEVER):
                    duplicates += size[offsets[first] + cell] if len(size) else 1
                arrival[dst, cell] = min(arrival[dst, cell], time)
    return duplicates, twice, culprit


@compiled
def settle_sums(
    handed_on: Matrix[np.uint16], fed: Matrix[np.uint16], arrival: Matrix[np.uint16], ends: Ranks
) -> tuple[int, int, int]:
    """Find where each sum ends and note in `arrival` when it is complete there.

    `ends[cell]` is the rank that must hold the sum, or -1 for any one rank. Returns (wrong cells, a rank, a
    cell): cells whose sum ends at no rank, at several, or at another rank than it must.
    """
    wrong = 0
    rank_seen = cell_seen = -1
    for cell in range(handed_on.shape[1]):
        holders = 0
        holder = -1
        for rank in range(handed_on.shape[0]):
            if handed_on[rank, cell] == 0:
                holders += 1
                holder = rank
                if ends[cell] >= 0 and rank != ends[cell]:
                    rank_seen, cell_seen = rank, cell
        if holders == 1 and (ends[cell] < 0 or holder == ends[cell]):
            arrival[holder, cell] = min(arrival[holder, cell], fed[holder, cell])
        else:
            wrong += 1
            if rank_seen < 0:
                rank_seen, cell_seen = holder, cell
    return wrong, rank_seen, cell_seen


@compiled
def check_times(
    rows: Matrix[np.int32],
    first: int,
    last: int,
    offsets: Numbers,
    arrival: Matrix[np.uint16],
    handed_on: Matrix[np.uint16],
) -> tuple[int, int, int, int]:
    """Check that every row sends what has arrived, and feeds only ranks that hand on later.

    Returns (cells sent before they were there, such a row or -1, partial sums that came too late, such a row).
    """
    early = late = 0
    early_row = late_row = -1
    for index in range(rows.shape[1]):
        shard = rows[3, index]
        if shard < first or shard >= last:
            continue
        step, src, dst = rows[0, index], rows[1, index], rows[2, index]
        base = offsets[shard] - offsets[first]
        for cell in range(base + rows[4, index], base + rows[5, index]):
            if rows[6, index]:
                if handed_on[dst, cell] != 0 and handed_on[dst, cell] <= step + 1:
                    late += 1
                    late_row = index
            elif arrival[src, cell] > step:
                early += 1
                early_row = index
    return early, early_row, late, late_row


@compiled
def first_missing(arrival: Matrix[np.uint16], size: Numbers, ends: Ranks) -> tuple[int, int, int]:
    """Return (missing chunks, a rank, a cell): what did not arrive where it must (`ends[cell]`, or everywhere if -1).

    size: chunks per cell of the window; empty where all are one
    """
    missing = 0
    rank_seen = cell_seen = -1
    for rank in range(arrival.shape[0]):
        for cell in range(arrival.shape[1]):
            if arrival[rank, cell] == np.uint16(NEVER) and (ends[cell] < 0 or ends[cell] == rank):
                missing += size[cell] if len(size) else 1
                rank_seen, cell_seen = rank, cell
    return missing, rank_seen, cell_seen


@compiled
def add_loads(
    step: Ranks, route: Ranks, chunks: Ranks, offsets: Numbers, link_ids: Ranks, loads: Matrix[np.int64]
) -> None:
    """Add the chunks of every row to `loads[step, link]` for every link of its route. O(hops)."""
    for index in range(len(step)):
        for hop in range(offsets[route[index]], offsets[route[index] + 1]):
            loads[step[index], link_ids[hop]] += chunks[index]
