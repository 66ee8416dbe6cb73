"""Divides messages into fragments, the parts that one send instruction and one receive instruction move."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chorale.synth.kernels import native
from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.placement import NOWHERE, Codes, Placement, step_slices
from chorale.synth.lowering.vector_layout import Column, NarrowColumn, expand_intervals
from chorale.synth.programs.program import BUFFERS


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
    exchanged: maximum in steps in which a rank receives into memory from which it also sends
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
    steps = [_fragments_of_step(placement, messages.select(rows), limits) for rows in step_slices(messages)]
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
