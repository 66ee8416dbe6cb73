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

from chorale.synth.kernels.compiled import inlined
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


@inlined
def merge_clock(clocks: Matrix[np.int32], row: int, other: int) -> None:
    """Order everything that `other` knows before what the owner of `row` does from now on."""
    for component in range(clocks.shape[1]):
        clocks[row, component] = max(clocks[row, component], clocks[other, component])


@inlined
def copy_clock(clocks: Matrix[np.int32], row: int, copy: int) -> None:
    """Copy `row` to row `copy`."""
    for component in range(clocks.shape[1]):
        clocks[copy, component] = clocks[row, component]


@inlined
def note_read(clocks: Matrix[np.int32], accesses: Accesses, block: int, base: int, cell: int) -> int:
    """Note that `block` reads `cell`; return a block whose write it races with, or -1.

    Row and component of block b are b and b - base.
    """
    last, read = accesses
    entry = last[cell, READ]
    while entry > 0 and clocks[block, read[entry, READER] - 1 - base] < read[entry, WHEN]:
        entry = read[entry, NEXT]
    if entry == 0:
        read[0, 0] += 1
        entry = read[0, 0]
        read[entry, NEXT] = last[cell, READ]
        last[cell, READ] = entry
    read[entry, READER] = block + 1
    read[entry, WHEN] = clocks[block, block - base]
    writer = last[cell, WRITER] - 1
    return -1 if writer < 0 or clocks[block, writer - base] >= last[cell, WRITTEN] else int(writer)


@inlined
def note_write(clocks: Matrix[np.int32], accesses: Accesses, block: int, base: int, cell: int) -> int:
    """Note that `block` writes `cell`; return a block whose access it races with, or -1."""
    last, read = accesses
    other = -1
    entry = last[cell, READ]
    while entry > 0:
        reader = read[entry, READER] - 1
        if clocks[block, reader - base] < read[entry, WHEN]:
            other = int(reader)
        entry = read[entry, NEXT]
    writer = last[cell, WRITER] - 1
    if writer >= 0 and clocks[block, writer - base] < last[cell, WRITTEN]:
        other = int(writer)
    last[cell, WRITER], last[cell, WRITTEN], last[cell, READ] = block + 1, clocks[block, block - base], 0
    return other
