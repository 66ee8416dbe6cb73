"""From the messages of a step to fragments, and when chunks arrive and leave, as machine code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix
from chorale.synth.lowering.vector_layout import NarrowColumn

SHIFT = 28
OFFSET_MASK = (1 << SHIFT) - 1
BUFFER_COUNT = 3
NOWHERE = -1

Marks = NDArray[np.uint8]
"""A bit of each cell of each rank."""


class Messages(NamedTuple):
    """Messages of one step: chunks `first` to `end - 1` go from `sender` to `receiver`."""

    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    first: NarrowColumn
    end: NarrowColumn
    reduces: NarrowColumn


class Cells(NamedTuple):
    """Where chunks lie, as codes `buffer << SHIFT | offset`.

    ordered: the code of chunk 0 where all chunks of all ranks lie in one buffer in the order of their numbers, so that
             `current` and `arrival` are empty; else NOWHERE
    current, arrival: [ranks, chunks], where a chunk is now, and where it is put when it arrives
    stride:  chunks of the data
    """

    ordered: int
    current: Matrix[np.int32]
    arrival: Matrix[np.int32]
    stride: int


class StepFragments(NamedTuple):
    """Of each fragment: its first message, where it lies, and its chunks."""

    row: NarrowColumn
    source: NarrowColumn
    operand: NarrowColumn
    target: NarrowColumn
    chunks: NarrowColumn


def marks_for(ranks: int, cells: Cells) -> Marks:
    """Return marks for all cells of so many ranks, none of them set."""
    buffers = BUFFER_COUNT if cells.ordered == NOWHERE else 1
    return np.zeros(ranks * buffers * cells.stride // 8 + 1, dtype=np.uint8)
