"""Decides where each rank stores each chunk, and divides messages into fragments.

A fragment is the part of a message that one send instruction and one receive instruction move.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.vector_layout import Column, NarrowColumn
from chorale.synth.programs.memory import BufferShape, Layout, buffer_chunks
from chorale.synth.programs.program import BUFFERS, Buffer

SHIFT = 28
OFFSET_MASK = (1 << SHIFT) - 1
NOWHERE = -1

Codes = NDArray[np.int32]
"""Memory locations of chunks, encoded as `buffer << SHIFT | offset`. Adjacent chunks differ by 1; -1 means none."""


_IN_ORDER = (
    CollectiveName.ALLGATHER,
    CollectiveName.ALLREDUCE,
    CollectiveName.BROADCAST,
    CollectiveName.REDUCE_SCATTER,
)
"""In these collectives, if they run in place, all chunks stay in one buffer, in the order of their indices."""


def stays_in_order(shape: BufferShape) -> bool:
    """Return whether all chunks stay in the same buffer, in the order of their indices, throughout the program."""
    return shape.in_place and shape.collective in _IN_ORDER


class Placement:
    """Tracks the `current` location of each chunk at each rank, and where the rank will store it on `arrival`.

    A chunk is in the input until it is first written. The first reduction therefore reads the input and writes
    elsewhere, so that an out-of-place program needs no initial copy. Chunks of the result are stored directly in the
    output. Chunks that a rank only forwards go to scratch, except that an in-place reduce_scatter keeps partial
    sums in its only buffer. In a reduce, only the root ever writes to its input or output.
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

    def locate(
        self, sender: NarrowColumn, receiver: NarrowColumn, chunk: NarrowColumn, reduces: NDArray[np.bool_]
    ) -> tuple[Codes, Codes, Codes]:
        """Return memory locations (source, operand, target) of chunks sent in one step, with one entry per sent chunk.

        source: location at the sender; operand: data to which the receiver adds the chunk; target: location of the
            result. If a rank receives several contributions to a chunk, it adds the first one to the data from before
            the step, and the others to the sum in `target`.
        """
        if self.is_ordered:
            place = (BUFFERS.index(self._shared_buffer) << SHIFT) + chunk
            return place, place, place
        target = self.arrival[receiver, chunk]
        is_first = np.zeros(len(chunk), dtype=np.bool_)
        is_first[np.unique(receiver.astype(np.int64) * self.shape.identities + chunk, return_index=True)[1]] = True
        operand = np.where(reduces & is_first, self.current[receiver, chunk], target)
        return self.current[sender, chunk], operand, target

    @property
    def used_chunks(self) -> tuple[int, int]:
        """Chunk counts of the input and output buffers of each rank; 0 for a buffer that no instruction uses."""
        inputs, outputs = buffer_chunks(self.shape.collective, self.shape.chunks, self.shape.ranks)
        if not self.shape.in_place:
            return inputs, outputs
        return (inputs, 0) if self.shape.collective == CollectiveName.REDUCE_SCATTER else (0, outputs)

    def misplaced(self, rank: int) -> tuple[Codes, Codes]:
        """Return (actual, required) memory locations of those result chunks that `rank` has to copy at the end."""
        result, final = self._result(rank)
        home = final if self.is_ordered else self.current[rank, result]
        wrong = home != final
        return home[wrong], final[wrong]

    def result_cells(self, rank: int, layout: Layout) -> NDArray[np.bool_]:
        """Return bool[cells]: whether a cell in the memory of `rank` holds a part of the rank's result at the end."""
        kept = np.zeros(layout.cells, dtype=np.bool_)
        _, final = self._result(rank)
        for number, buffer in enumerate(BUFFERS):
            kept[layout.base(buffer) + (final[final >> SHIFT == number] & OFFSET_MASK)] = True
        return kept

    @property
    def _shared_buffer(self) -> Buffer:
        """The buffer that all instructions of an in-place program use."""
        return "i" if self.shape.collective == CollectiveName.REDUCE_SCATTER else "o"

    def _result(self, rank: int) -> tuple[NDArray[np.int64], Codes]:
        """Return (indices of the result chunks of `rank`, memory locations in which they must be at the end)."""
        result = self.shape.result_chunks(rank)
        in_shared = self.shape.in_place and self.shape.collective == CollectiveName.REDUCE_SCATTER
        return result, (_codes("i", 0, self.shape.chunks)[result] if in_shared else _codes("o", 0, len(result)))


def _moments(
    shape: BufferShape, messages: ChannelMessages, rank: NarrowColumn, latest: bool = False
) -> NDArray[np.int32]:
    """Return int32[ranks, chunks]: first (or `latest`) step in which a rank sends or receives a chunk; -1 for none.

    rank: for each message, its sender (to find steps with sends) or its receiver (to find steps with receives)
    """
    steps = np.full((shape.ranks, shape.identities), NOWHERE, dtype=np.int32)
    row, chunk = (column if latest else column[::-1] for column in messages.cells())
    steps[rank[row], chunk] = messages.step[row]  # of several entries for a chunk, the last one is kept
    return steps


def _codes(buffer: Buffer, first: int, count: int) -> Codes:
    return (BUFFERS.index(buffer) << SHIFT) + np.arange(first, first + count, dtype=np.int32)


class Fragments(NamedTuple):
    """Fragments as columns, sorted by step. Each fragment is one instruction at its sender and one at its receiver.

    reduces: 1 if the receiver adds the chunks to its own data, 0 if it only stores them
    source:  memory location of the first chunk at the sender
    operand: location of the data to which the receiver adds the first chunk; equal to `target` if `reduces` is 0
    target:  location where the receiver stores the first chunk or sum
    chunks:  number of chunks; they are consecutive in memory at both ends
    exchanged: 1 in steps in which some rank receives into memory from which it also sends, otherwise 0
    turn:    0 if `exchanged` is 0. Otherwise, the fragment's index among those of its connection in this step: a rank
             can send all fragments of turn 0, receive those of turn 0, continue with turn 1, and so on. If this order
             would overwrite chunks before they are sent, `turn` is -1 for all fragments of the step.
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


@dataclass(frozen=True, slots=True)
class FragmentLimits:
    """Limits on the size of fragments. One send and one receive instruction move each fragment.

    longest:   maximum number of chunks in any fragment
    exchanged: the same maximum for steps in which some rank receives into memory from which it also sends
    across:    whether a fragment may span several messages of a connection
    """

    longest: int
    exchanged: int
    across: bool


def fragments_of(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> Fragments:
    """Return the fragments of all messages. Afterwards, `placement.current` holds the final locations.

    A step sends the data that were in memory before the step. If a rank receives into memory from which it sends, the
    receive has to wait for the send. Two ranks that exchange data in this way would wait for each other forever if a
    fragment did not fit into the connection buffer; `limits.exchanged` prevents this.
    O(chunks moved * log(chunks of a step)).
    """
    edges = np.flatnonzero(np.diff(messages.step, prepend=-1, append=-1)).tolist()
    rows_of_steps = (slice(first, end) for first, end in pairwise(edges))
    steps = [_fragments_of_step(placement, messages.select(rows), limits) for rows in rows_of_steps]
    if not steps:
        return Fragments(*(np.zeros(0, dtype=np.int32) for _ in Fragments._fields))
    # Concatenate one column at a time to save memory.
    return Fragments(*(np.concatenate([step.pop(0) for step in steps]) for _ in Fragments._fields))


def _fragments_of_step(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> list[NarrowColumn]:
    row, chunk = messages.cells()
    sender, receiver = messages.sender[row], messages.receiver[row]
    source, operand, target = placement.locate(sender, receiver, chunk, messages.reduces[row] == 1)
    sent, received = (
        (rank.astype(np.int64) << 32) + code for rank, code in ((sender, source), (receiver, target))
    )  # cells
    exchanged = bool(np.isin(received, sent).any())
    changes = np.zeros(len(messages), dtype=np.bool_)
    for column in (messages.sender, messages.receiver, messages.channel):
        changes[1:] |= np.diff(column) != 0
    connection = np.cumsum(changes, dtype=np.int64)  # numbers the runs of messages on one connection
    joined = connection[row] if limits.across else row
    longest = min(limits.longest, limits.exchanged) if exchanged else limits.longest
    first, count = contiguous_runs((source, operand, target, np.arange(len(row)) + joined), longest)
    if not placement.is_ordered:  # from now on, ranks send chunks from where they stored them on arrival
        placement.current[receiver, chunk] = target
    turn = np.zeros(len(first), dtype=np.int64)
    if exchanged:
        # each fragment's index within its connection; -1 for all if a cell would be overwritten before it is sent
        of_row = connection[row[first]]
        starts = np.flatnonzero(np.diff(of_row, prepend=-1))
        turns = np.arange(len(of_row)) - np.repeat(starts, np.diff(starts, append=len(of_row)))
        of_cell = np.repeat(turns, count)
        cells, index = np.unique(sent, return_inverse=True)
        last_sent = np.zeros(len(cells), dtype=np.int64)
        np.maximum.at(last_sent, index, of_cell)
        position = np.minimum(np.searchsorted(cells, received), len(cells) - 1)
        early = (cells[position] == received) & (last_sent[position] > of_cell)
        turn = np.full_like(turns, -1) if early.any() else turns
    of_messages = (messages.step, messages.sender, messages.receiver, messages.channel, messages.reduces)
    columns: list[NDArray[Any]] = [column[row[first]] for column in of_messages]
    columns += [source[first], operand[first], target[first], count, np.full(len(first), exchanged), turn]
    return [column.astype(np.int32, copy=False) for column in columns]


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
