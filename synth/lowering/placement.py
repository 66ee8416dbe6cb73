"""Decides where each rank stores each chunk while a program runs."""

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.vector_layout import NarrowColumn
from chorale.synth.programs.memory import BufferShape, Layout, buffer_chunks
from chorale.synth.programs.program import BUFFERS, Buffer

SHIFT = 28
OFFSET_MASK = (1 << SHIFT) - 1
NOWHERE = -1

Codes = NDArray[np.int32]
"""Places of chunks as numbers `buffer << SHIFT | offset`: adjacent places differ by 1; -1 means no place."""

Moments = NDArray[np.int32]
"""int[ranks, chunks]: step numbers, or -1."""

_IN_ORDER = (
    CollectiveName.ALLGATHER,
    CollectiveName.ALLREDUCE,
    CollectiveName.BROADCAST,
    CollectiveName.REDUCE_SCATTER,
)
"""In place, all chunks of these collectives stay in one buffer, in the order of their indices."""


class Cells(NamedTuple):
    """Places of chunks, as codes `buffer << SHIFT | offset`.

    ordered: code of chunk 0 if all chunks are in one buffer, in index order, on all ranks; `current` and `arrival` are
             then empty. Otherwise NOWHERE.
    current: [ranks, chunks], current place of each chunk
    arrival: [ranks, chunks], place where each chunk is stored when it arrives
    stride:  number of distinct chunks
    """

    ordered: int
    current: Matrix[np.int32]
    arrival: Matrix[np.int32]
    stride: int


def stays_in_order(shape: BufferShape) -> bool:
    """Return whether all chunks always stay in one buffer, in the order of their indices."""
    return shape.in_place and shape.collective in _IN_ORDER


class Placement:
    """The place of each chunk at each rank (`current`), and the place where the rank stores it on arrival (`arrival`).

    A chunk is in the input until it is first written. The first reduction therefore reads the input and writes
    elsewhere, so that an out-of-place program needs no copy before it. Chunks of the result are stored in their final
    place. Chunks that only pass through go to scratch, except that in-place reduce_scatter keeps partial sums in its
    buffer. In a reduce, only the root ever writes to its input or output.
    """

    def __init__(self, shape: BufferShape, messages: ChannelMessages) -> None:
        self.scratch_chunks = [0] * shape.ranks
        self.shape = shape
        extent = (0, 0) if self.is_ordered else (shape.ranks, shape.identities)
        self.current: Codes = np.full(extent, NOWHERE, dtype=np.int32)
        self.arrival: Codes = np.full(extent, NOWHERE, dtype=np.int32)
        if self.is_ordered:
            return
        arrives = _moments(shape, messages, messages.receiver)
        leaves = _moments(shape, messages, messages.sender, latest=True)
        for rank in range(shape.ranks):
            self._put_held(rank)
            self._put_arriving(rank, arrives[rank], leaves[rank])

    @property
    def is_ordered(self) -> bool:
        """Whether all chunks stay in one buffer in the order of their indices, so that no tables are needed."""
        return stays_in_order(self.shape)

    @property
    def cells(self) -> Cells:
        """The places of all chunks, in the format that kernels read."""
        ordered = BUFFERS.index(self._shared_buffer) << SHIFT if self.is_ordered else NOWHERE
        return Cells(ordered, self.current, self.arrival, self.shape.identities)

    @property
    def used_chunks(self) -> tuple[int, int]:
        """Numbers of input and output chunks that a rank declares. A buffer that no instruction uses has 0."""
        inputs, outputs = buffer_chunks(self.shape.collective, self.shape.chunks, self.shape.ranks)
        if not self.shape.in_place:
            return inputs, outputs
        return (inputs, 0) if self.shape.collective == CollectiveName.REDUCE_SCATTER else (0, outputs)

    def misplaced(self, rank: int) -> tuple[Codes, Codes]:
        """Return (actual places, required places) of those result chunks of `rank` that end up in a wrong place."""
        result, final = self._result(rank)
        home = final if self.is_ordered else self.current[rank, result]
        wrong = home != final
        return home[wrong], final[wrong]

    def result_cells(self, rank: int, layout: Layout) -> NDArray[np.bool_]:
        """Return bool[cells]: whether the cell of `rank` contains a part of its result at the end."""
        kept = np.zeros(layout.cells, dtype=np.bool_)
        _, final = self._result(rank)
        for number, buffer in enumerate(BUFFERS):
            kept[layout.base(buffer) + (final[final >> SHIFT == number] & OFFSET_MASK)] = True
        return kept

    def _put_held(self, rank: int) -> None:
        shape = self.shape
        held = shape.initial_chunks(rank)
        first = int(held[0]) if shape.in_place and shape.collective == CollectiveName.ALLGATHER else 0
        buffer = self._shared_buffer if shape.in_place else "i"
        self.current[rank, held] = _codes(buffer, first, len(held))

    def _put_arriving(self, rank: int, arrives: Moments, leaves: Moments) -> None:
        shape, work = self.shape, self.arrival[rank]
        result, final = self._result(rank)
        work[result] = final
        if shape.in_place and shape.collective == CollectiveName.REDUCE_SCATTER:
            work[:] = _codes("i", 0, shape.chunks)
        if shape.in_place and shape.collective == CollectiveName.ALLTOALL:
            # Input and output share cells, so a chunk that arrives before its cell is free goes to scratch.
            occupant = rank * shape.chunks + (final & OFFSET_MASK)
            work[result[leaves[occupant] > arrives[result]]] = -1
        passing = np.flatnonzero((arrives >= 0) & (work < 0))
        work[passing] = _codes("s", 0, len(passing))
        self.scratch_chunks[rank] = len(passing)

    @property
    def _shared_buffer(self) -> Buffer:
        """The only buffer that the instructions of an in-place program name."""
        return "i" if self.shape.collective == CollectiveName.REDUCE_SCATTER else "o"

    def _result(self, rank: int) -> tuple[NDArray[np.int64], Codes]:
        """Return (indices of the result chunks of `rank`, their final places)."""
        result = self.shape.result_chunks(rank)
        in_shared = self.shape.in_place and self.shape.collective == CollectiveName.REDUCE_SCATTER
        return result, (_codes("i", 0, self.shape.chunks)[result] if in_shared else _codes("o", 0, len(result)))


def _moments(shape: BufferShape, messages: ChannelMessages, rank: NarrowColumn, latest: bool = False) -> Moments:
    """Return the first (or `latest`) step in which a message moves each chunk from or to each rank; -1 if none does.

    rank: sender of each message, to find moves from ranks, or its receiver, to find moves to ranks
    """
    steps = np.full((shape.ranks, shape.identities), NOWHERE, dtype=np.int32)
    columns = (rank, messages.step, messages.first, messages.end)
    ends, step, first, end = (np.ascontiguousarray(column if latest else column[::-1]) for column in columns)
    native.moments(ends, step, first, end, steps)
    return steps


def step_slices(messages: ChannelMessages) -> list[slice]:
    """Return the slice of rows of each step, in order."""
    edges = np.flatnonzero(np.diff(messages.step, prepend=-1, append=-1)).tolist()
    return [slice(first, end) for first, end in pairwise(edges)]


def _codes(buffer: Buffer, first: int, count: int) -> Codes:
    return (BUFFERS.index(buffer) << SHIFT) + np.arange(first, first + count, dtype=np.int32)
