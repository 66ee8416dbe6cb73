"""Finds pairs of accesses to one cell that nothing orders, by vector clocks over the blocks.

A program has no branches, so which accesses are ordered does not depend on how an execution happened to go: one
execution finds a race if there is one. Order comes from the sequence within a block, from waits, and from messages
(what a rank did before it sent is before what the receiver does after it received). Free slots of a queue are no
order to rely on.

The clock per block and the last accesses per cell follow C. Flanagan, S. Freund, "FastTrack" (PLDI 2009): a read
that is before a later one of the same cell need not be kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix

Clocks = NDArray[np.int32]
"""int32[rows, components]: what the owner of a row knows to have happened in each block that counts."""

WRITER, WRITTEN, READ = 0, 1, 2
NEXT, READER, WHEN = 0, 1, 2


class Accesses(NamedTuple):
    """The last accesses of each cell. Blocks are counted from 1, so that 0 is none.

    last: int32[cells, 3]: block and time of the last write, first kept read since
    read: int32[1 + reads, 3]: next kept read of the cell, block, time; the first row counts the rows in use
    """

    last: Matrix[np.int32]
    read: Matrix[np.int32]


def no_accesses(cells: int, reads: int) -> Accesses:
    """Return room for the accesses of `cells` cells of which at most `reads` are reads."""
    return Accesses(np.zeros((cells, 3), dtype=np.int32), np.zeros((1 + reads, 3), dtype=np.int32))
