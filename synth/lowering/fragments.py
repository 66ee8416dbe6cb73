"""From messages to fragments: what one instruction at either end moves, with its places there."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chorale.synth.kernels import native
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.placement import NOWHERE, Codes, Placement, step_slices
from chorale.synth.lowering.vector_layout import Column, NarrowColumn, expand_intervals
from chorale.synth.programs.program import BUFFERS


class Messages(NamedTuple):
    """Messages of one step: chunks `first` to `end - 1` go from `sender` to `receiver`."""

    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    first: NarrowColumn
    end: NarrowColumn
    reduces: NarrowColumn


class StepFragments(NamedTuple):
    """First message, places and number of chunks of each fragment."""

    row: NarrowColumn
    source: NarrowColumn
    operand: NarrowColumn
    target: NarrowColumn
    chunks: NarrowColumn


class Fragments(NamedTuple):
    """Columns of equal length, sorted by step. A fragment is one instruction of its sender and one of its receiver.

    source:  place of the first chunk at the sender
    operand: place of what the receiver adds to the first chunk; equals `target` if it adds nothing
    target:  place where the receiver stores the first chunk
    chunks:  number of chunks, which are consecutive at both ends
    exchanged: 1 in steps in which a rank receives into memory that it sends
    turn:    in such steps, the number of the fragment in its connection: ranks can send the fragments of a turn, then
             receive those of the turn, and so on; 0 in other steps; -1 if turns would overwrite unsent chunks
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
        """Whether sends and receives in one block cannot deadlock.

        Then all fragments, or turns, have an order in which no send needs more room than its connection has.
        """
        return not (self.turn < 0).any()


@dataclass(frozen=True, slots=True)
class FragmentLimits:
    """Largest size of fragments.

    longest:   chunks of a fragment
    exchanged: chunks of a fragment in a step in which a rank receives into memory that it sends
    across:    whether a fragment may contain several messages of one connection
    """

    longest: int
    exchanged: int
    across: bool


def fragments_of(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> Fragments:
    """Return the fragments of all messages, and update `placement.current` to the places at the end.

    All data sent in a step are those from before the step. If a rank receives into memory that it sends, the receive
    waits for the send, and two ranks that exchange data would wait for each other if fragments were longer than what a
    connection holds without its receiver. O(chunks moved * log(chunks of a step)).
    """
    steps = [_fragments_of_step(placement, messages.select(rows), limits) for rows in step_slices(messages)]
    if not steps:
        return Fragments(*(np.zeros(0, dtype=np.int32) for _ in Fragments._fields))
    # Columns are joined one by one, to save memory.
    return Fragments(*(np.concatenate([step.pop(0) for step in steps]) for _ in Fragments._fields))


def _fragments_of_step(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> list[NarrowColumn]:
    rows, cells = Messages(*(getattr(messages, name) for name in Messages._fields)), placement.cells
    buffers = len(BUFFERS) if cells.ordered == NOWHERE else 1
    marks = np.zeros(placement.shape.ranks * buffers * cells.stride // 8 + 1, dtype=np.uint8)  # a bit of each cell
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
        connection = np.cumsum(changes, dtype=np.int32)  # numbers the runs of messages of one connection
        turn = _turns(connection[made.row], made.chunks, sent, received).astype(np.int32)
    whole = np.full(len(made.row), exchanged, dtype=np.int32)
    places = (made.source, made.operand, made.target, made.chunks)
    return [step, sender, receiver, channel, reduces, *map(np.array, places), whole, turn]


def _turns(connection: NarrowColumn, count: NarrowColumn, sent: Column, received: Column) -> Column:
    """Return the number of each fragment within its connection; -1 for all if a cell would be overwritten unsent.

    connection, count: connection and chunks of each fragment
    sent, received: cells of all chunks of all fragments
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
    """Return first member and length of the stretches in which every column counts up by one.

    Stretches are cut after `longest` members.
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
