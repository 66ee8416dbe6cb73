"""Decides where each rank stores each chunk, and divides messages into fragments.

A fragment is the part of a message that one send instruction and one receive instruction move.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.vector_layout import Column, NarrowColumn, expand_intervals
from chorale.synth.programs.memory import BufferShape, Layout, buffer_chunks
from chorale.synth.programs.program import BUFFERS, Buffer

SHIFT = 28
OFFSET_MASK = (1 << SHIFT) - 1
NOWHERE = -1

Codes = NDArray[np.int32]
"""Places of chunks as numbers `buffer << SHIFT | offset`: adjacent places differ by 1; -1 means no place."""


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
            held = shape.initial_chunks(rank)
            first = int(held[0]) if shape.in_place and shape.collective == CollectiveName.ALLGATHER else 0
            self.current[rank, held] = _codes(self._shared_buffer if shape.in_place else "i", first, len(held))
            work, (result, final) = self.arrival[rank], self._result(rank)
            work[result] = final
            if shape.in_place and shape.collective == CollectiveName.REDUCE_SCATTER:
                work[:] = _codes("i", 0, shape.chunks)
            if shape.in_place and shape.collective == CollectiveName.ALLTOALL:
                # Input and output share cells, so a chunk that arrives before its cell is free goes to scratch.
                occupant = rank * shape.chunks + (final & OFFSET_MASK)
                work[result[leaves[rank, occupant] > arrives[rank, result]]] = -1
            passing = np.flatnonzero((arrives[rank] >= 0) & (work < 0))
            work[passing] = _codes("s", 0, len(passing))
            self.scratch_chunks[rank] = len(passing)

    @property
    def is_ordered(self) -> bool:
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

    @property
    def _shared_buffer(self) -> Buffer:
        """The only buffer that the instructions of an in-place program name."""
        return "i" if self.shape.collective == CollectiveName.REDUCE_SCATTER else "o"

    def _result(self, rank: int) -> tuple[NDArray[np.int64], Codes]:
        """Return (indices of the result chunks of `rank`, their final places)."""
        result = self.shape.result_chunks(rank)
        in_shared = self.shape.in_place and self.shape.collective == CollectiveName.REDUCE_SCATTER
        return result, (_codes("i", 0, self.shape.chunks)[result] if in_shared else _codes("o", 0, len(result)))


def _moments(
    shape: BufferShape, messages: ChannelMessages, rank: NarrowColumn, latest: bool = False
) -> NDArray[np.int32]:
    """Return int32[ranks, chunks], the first (or `latest`) step in which a message moves a chunk; -1 if none does.

    rank: sender of each message, to find moves from ranks, or its receiver, to find moves to ranks
    """
    steps = np.full((shape.ranks, shape.identities), NOWHERE, dtype=np.int32)
    columns = (rank, messages.step, messages.first, messages.end)
    ends, step, first, end = (np.ascontiguousarray(column if latest else column[::-1]) for column in columns)
    native.moments(ends, step, first, end, steps)
    return steps


def _codes(buffer: Buffer, first: int, count: int) -> Codes:
    return (BUFFERS.index(buffer) << SHIFT) + np.arange(first, first + count, dtype=np.int32)


class Messages(NamedTuple):
    """The messages of one step. Message i moves the chunks `first` to `end - 1` from `sender` to `receiver`."""

    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    first: NarrowColumn
    end: NarrowColumn
    reduces: NarrowColumn


class StepFragments(NamedTuple):
    """The fragments of one step: for each, its first message (`row`), its places in memory, and its chunk count."""

    row: NarrowColumn
    source: NarrowColumn
    operand: NarrowColumn
    target: NarrowColumn
    chunks: NarrowColumn


class Fragments(NamedTuple):
    """Fragments as columns, sorted by step. Each fragment is one instruction at its sender and one at its receiver.

    source:  place of the first chunk at the sender
    operand: place of the data to which the receiver adds the first chunk; equal to `target` if it does not add
    target:  place where the receiver stores the first chunk
    chunks:  number of chunks; they are consecutive in memory at both ends
    exchanged: 1 in steps in which some rank receives into memory from which it also sends, otherwise 0
    turn:    if `exchanged` is 1, the index of the fragment in its connection. A rank can then send all fragments of
             turn 0, receive those of turn 0, continue with turn 1, and so on. -1 if this order would overwrite chunks
             before they are sent. 0 in all other steps.
    """

    step: NarrowColumn
    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    reduces: NarrowColumn
    source: Codes
    operand: Codes
    target: Codes
    chunks: NarrowColumn
    exchanged: NarrowColumn
    turn: NarrowColumn

    @property
    def may_share_blocks(self) -> bool:
        """Whether sends and receives may be in the same block without risk of deadlock.

        This is the case if fragments (or turns) have an order in which every send fits into the connection buffer.
        """
        return not (self.turn < 0).any()


@dataclass(frozen=True, slots=True)
class FragmentLimits:
    """Limits on the size of fragments.

    longest:   maximum number of chunks in a fragment
    exchanged: the same for steps in which a rank receives into memory from which it also sends
    across:    whether a fragment may span several messages of a connection
    """

    longest: int
    exchanged: int
    across: bool


def fragments_of(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> Fragments:
    """Return the fragments of all messages, and update `placement.current` to the final places.

    A step sends the data that were in memory before the step. If a rank receives into memory from which it sends, the
    receive has to wait for the send. Two ranks that exchange data would then wait for each other if a fragment did not
    fit into the connection buffer; `limits.exchanged` prevents this. O(chunks moved * log(chunks of a step)).
    """
    edges = np.flatnonzero(np.diff(messages.step, prepend=-1, append=-1)).tolist()
    rows_of_steps = (slice(first, end) for first, end in pairwise(edges))
    steps = [_fragments_of_step(placement, messages.select(rows), limits) for rows in rows_of_steps]
    if not steps:
        return Fragments(*(np.zeros(0, dtype=np.int32) for _ in Fragments._fields))
    # Concatenate one column at a time to save memory.
    return Fragments(*(np.concatenate([step.pop(0) for step in steps]) for _ in Fragments._fields))


def _fragments_of_step(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> list[NarrowColumn]:
    rows, cells = Messages(*(getattr(messages, name) for name in Messages._fields)), placement.cells
    buffers = len(BUFFERS) if cells.ordered == NOWHERE else 1
    marks = np.zeros(placement.shape.ranks * buffers * cells.stride // 8 + 1, dtype=np.uint8)  # one bit per cell
    exchanged = native.is_exchange(rows, cells, marks)
    longest = min(limits.longest, limits.exchanged) if exchanged else limits.longest
    made = StepFragments(*native.step_fragments(rows, cells, marks, longest, limits.across))
    columns = (messages.step, messages.sender, messages.receiver, messages.channel, messages.reduces)
    step, sender, receiver, channel, reduces = (column[made.row] for column in columns)
    turn = np.zeros(len(made.row), dtype=np.int32)
    if exchanged:
        sent, received = (
            expand_intervals((rank.astype(np.int64) << 32) + code, made.chunks)[1]
            for rank, code in ((sender, made.source), (receiver, made.target))
        )
        changes = np.zeros(len(messages), dtype=np.bool_)
        for column in (messages.sender, messages.receiver, messages.channel):
            changes[1:] |= np.diff(column) != 0
        connection = np.cumsum(changes, dtype=np.int32)  # numbers the runs of messages on one connection
        turn = _turns(connection[made.row], made.chunks, sent, received).astype(np.int32)
    whole = np.full(len(made.row), exchanged, dtype=np.int32)
    places = (made.source, made.operand, made.target, made.chunks)
    return [step, sender, receiver, channel, reduces, *map(np.array, places), whole, turn]


def _turns(connection: NarrowColumn, count: NarrowColumn, sent: Column, received: Column) -> Column:
    """Return each fragment's index within its connection; -1 for all if a cell would be overwritten before it is sent.

    Args:
        connection: The connection of each fragment.
        count: Number of chunks in each fragment.
        sent: The sender's cell for each chunk of each fragment.
        received: The receiver's cell for each chunk of each fragment.
    """
    starts = np.flatnonzero(np.diff(connection, prepend=-1))
    turn = np.arange(len(connection)) - np.repeat(starts, np.diff(starts, append=len(connection)))
    of_cell = np.repeat(turn, count)
    cells, index = np.unique(sent, return_inverse=True)
    last_sent = np.zeros(len(cells), dtype=np.int64)
    np.maximum.at(last_sent, index, of_cell)
    position = np.minimum(np.searchsorted(cells, received), len(cells) - 1)
    early = (cells[position] == received) & (last_sent[position] > of_cell)
    return np.full_like(turn, -1) if early.any() else turn


def contiguous_runs(columns: tuple[Codes | Column, ...], longest: int) -> tuple[Column, Column]:
    """Return (first index, length) of each run of rows in which all columns increase by one per row.

    Runs with more than `longest` rows are split.
    """
    if not len(columns[0]):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    border = np.zeros(len(columns[0]) - 1, dtype=np.bool_)
    for column in columns:
        border |= np.diff(column) != 1
    edges = np.concatenate([[0], np.flatnonzero(border) + 1, [len(columns[0])]])
    stretch = np.diff(edges)
    cuts = -(-stretch // longest)
    of = np.repeat(np.arange(len(stretch)), cuts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    return edges[of] + within * longest, np.minimum(longest, stretch[of] - within * longest)
