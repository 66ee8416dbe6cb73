"""Tables that a replay of a schedule fills, for all cells and in any order of rows (`chorale.synth.verify.verify`).

Tables hold the cells of a window of shards, `first` to `last - 1`; the cells of shard s begin at `offsets[s] -
offsets[first]`. Times are stored as step + 1; `NEVER` means that the event does not happen.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix

NEVER = 65535
Times = NDArray[np.uint16]
Ranks = NDArray[np.int32]
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]
"""int32[7, rows]: step, src, dst, shard, first cell within the shard, the one after the last, reduce."""


class ActorTables(NamedTuple):
    """Events of each cell of a window, per actor and per switch that acts.

    arrival:    earliest arrival of what is finished;  handed_on: when an actor sent its partial sum
    fed:        when it last got one;  first_fed: when a switch first got one;  inputs: how many a switch gets
    goes_to:    the actor to which a switch hands its sum on;  comes_from: the one from which it has the result
    copies:     how many copies a switch sends
    """

    arrival: Matrix[np.uint16]
    handed_on: Matrix[np.uint16]
    fed: Matrix[np.uint16]
    first_fed: Matrix[np.uint16]
    inputs: Matrix[np.int32]
    goes_to: Matrix[np.int32]
    comes_from: Matrix[np.int32]
    copies: Matrix[np.int32]


def first_missing(
    arrival: Matrix[np.uint16], size: Numbers, ends: Ranks, members: Matrix[np.bool_] | None = None
) -> tuple[int, int, int]:
    """Return (missing chunks, a rank, a cell): what did not arrive where it must (`ends[cell]`, or everywhere if -1).

    size:    chunks per cell of the window; empty where all are one
    members: bool[ranks, cells], the ranks where it must arrive, in place of all
    """
    missing = arrival == NEVER
    if missing.any():
        missing &= members if members is not None else True
        missing &= (ends < 0) | (ends == np.arange(len(arrival))[:, np.newaxis])
    ranks, cells = np.nonzero(missing)
    if not len(cells):
        return 0, -1, -1
    return int(size[cells].sum()) if len(size) else len(cells), int(ranks[-1]), int(cells[-1])
