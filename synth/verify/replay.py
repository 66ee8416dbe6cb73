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
