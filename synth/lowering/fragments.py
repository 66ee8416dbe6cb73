"""From messages to fragments: the part that one instruction at either end moves, and where it lies there."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lowering.messages import ChannelMessages
from chorale.synth.lowering.placement import OFFSET_MASK, SHIFT, Codes, Placement, step_slices
from chorale.synth.lowering.vector_layout import Column, NarrowColumn
from chorale.synth.programs.columns import BUFFERS


@dataclass(frozen=True, slots=True, eq=False)
class Fragments:
    """Columns of equal length, sorted by step. A fragment is one instruction of its sender and one of its receiver.

    source:  where the first chunk lies at the sender
    operand: where the receiver holds what it adds to the first chunk; equals `target` where it adds nothing
    target:  where the receiver puts the first chunk
    count:   number of chunks; they follow one another at both ends
    exchanged: 1 in steps in which a rank receives into what it sends
    turn:    in such steps, which fragment of its connection it is: ranks may send the fragments of a turn, then receive
             those of the turn, and so on. 0 in other steps; -1 where turns would overwrite what is still to be sent
    """

    step: NarrowColumn
    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    reduces: NarrowColumn
    source: Codes
    operand: Codes
    target: Codes
    count: NarrowColumn
    exchanged: NarrowColumn
    turn: NarrowColumn

    def __len__(self) -> int:
        return len(self.step)

    @property
    def may_share_blocks(self) -> bool:
        """Whether sends and receives in one block cannot deadlock: all fragments, or turns, have an order in which no
        send needs more room than its connection has."""
        return not (self.turn < 0).any()


@dataclass(frozen=True, slots=True)
class FragmentLimits:
    """How large fragments may be.

    longest:   chunks of a fragment
    exchanged: chunks of a fragment in a step in which a rank receives into what it sends
    across:    whether a fragment may hold several messages of one connection
    """

    longest: int
    exchanged: int
    across: bool


def fragments_of(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> Fragments:
    """Return the fragments of all messages, and leave in `placement.home` where everything is in the end.

    In a step, all that is sent is the state before the step. Where a rank receives into what it sends, the receive
    waits for the send, and two ranks that exchange would wait for each other if fragments were longer than what a
    connection holds without its receiver. O(chunks moved * log(chunks of a step)).
    """
    steps = [_fragments_of_step(placement, messages.select(rows), limits) for rows in step_slices(messages)]
    if not steps:
        return Fragments(*(np.zeros(0, dtype=np.int32) for _ in fields(Fragments)))
    # One by one, so that what has been joined need not be held.
    return Fragments(*(np.concatenate([step.pop(0) for step in steps]) for _ in fields(Fragments)))


def _fragments_of_step(placement: Placement, messages: ChannelMessages, limits: FragmentLimits) -> list[NarrowColumn]:
    row, chunk = messages.cells()
    sender, receiver = messages.sender[row], messages.receiver[row]
    source, target = placement.current[sender, chunk], placement.arrival[receiver, chunk]
    operand = target
    if messages.reduces.any():
        operand = np.where(messages.reduces[row] == 1, _operands(placement, receiver, chunk), target)
    placement.current[receiver, chunk] = target
    exchanged = _meet(placement, (sender, source), (receiver, target))
    connection = _connection(messages)
    border = np.diff(connection[row] if limits.across else row) != 0
    for column in (source, operand, target):
        border |= np.diff(column) != 1
    first, count = _split_runs(border, len(row), min(limits.longest, limits.exchanged) if exchanged else limits.longest)
    of = row[first]
    turn = np.zeros(len(of), dtype=np.int64)
    if exchanged:
        turn = _turns(connection[of], count, _cells(sender, source), _cells(receiver, target))
    columns = (messages.step, messages.sender, messages.receiver, messages.channel, messages.reduces)
    narrow = (column.astype(np.int32) for column in (count, np.full(len(of), exchanged), turn))
    return [*(column[of] for column in columns), source[first], operand[first], target[first], *narrow]


def _meet(placement: Placement, sent: tuple[NarrowColumn, Codes], received: tuple[NarrowColumn, Codes]) -> bool:
    """Return whether any rank receives into a cell that it sends from; both are ranks and codes of cells. O(cells)."""
    ranks, stride = placement.current.shape
    taken = np.zeros((ranks, len(BUFFERS), stride), dtype=np.bool_)
    taken[sent[0], sent[1] >> SHIFT, sent[1] & OFFSET_MASK] = True
    return bool(taken[received[0], received[1] >> SHIFT, received[1] & OFFSET_MASK].any())


def _turns(connection: NarrowColumn, count: Column, sent: Column, received: Column) -> Column:
    """Return the number of each fragment within its connection; -1 for all if a cell would be overwritten before it is
    sent. `connection` and `count` are of fragments, `sent` and `received` of their chunks."""
    starts = np.flatnonzero(np.diff(connection, prepend=-1))
    turn = np.arange(len(connection)) - np.repeat(starts, np.diff(starts, append=len(connection)))
    of_cell = np.repeat(turn, count)
    cells, index = np.unique(sent, return_inverse=True)
    last_sent = np.zeros(len(cells), dtype=np.int64)
    np.maximum.at(last_sent, index, of_cell)
    position = np.minimum(np.searchsorted(cells, received), len(cells) - 1)
    early = (cells[position] == received) & (last_sent[position] > of_cell)
    return np.full_like(turn, -1) if early.any() else turn


def _operands(placement: Placement, receiver: NarrowColumn, chunk: NarrowColumn) -> Codes:
    """Return where each receiver holds what it adds to: where the chunk was before the step, or, from the second
    addition of the step on, where the first put the sum."""
    cell = receiver.astype(np.int64) * placement.current.shape[1] + chunk
    # Numbers are sorted much faster than their indices.
    by_cell = np.sort(cell * len(cell) + np.arange(len(cell)))
    first = by_cell[np.diff(by_cell // len(cell), prepend=-1) != 0] % len(cell)
    operand: Codes = placement.arrival[receiver, chunk]
    operand[first] = placement.current[receiver[first], chunk[first]]
    return operand


def _cells(rank: NarrowColumn, code: Codes) -> Column:
    return (rank.astype(np.int64) << 32) + code


def _connection(messages: ChannelMessages) -> NarrowColumn:
    """Number the runs of messages of one connection."""
    changes = np.zeros(len(messages), dtype=np.bool_)
    for column in (messages.sender, messages.receiver, messages.channel):
        changes[1:] |= np.diff(column) != 0
    return np.cumsum(changes, dtype=np.int32)


def _split_runs(border: NDArray[np.bool_], length: int, longest: int) -> tuple[Column, Column]:
    """Return first member and length of each stretch of `length` members between borders, at most `longest` long."""
    edges = np.concatenate([[0], np.flatnonzero(border) + 1, [length]])
    stretch = np.diff(edges)
    cuts = -(-stretch // longest)
    of = np.repeat(np.arange(len(stretch)), cuts)
    within = np.arange(len(of)) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    return edges[of] + within * longest, np.minimum(longest, stretch[of] - within * longest)


def contiguous_runs(columns: tuple[Codes, ...], longest: int) -> tuple[Column, Column]:
    """Return first member and length of the longest stretches in which every column counts up by one."""
    border = np.zeros(max(0, len(columns[0]) - 1), dtype=np.bool_)
    for column in columns:
        border |= np.diff(column) != 1
    return (
        _split_runs(border, len(columns[0]), longest)
        if len(columns[0])
        else (np.zeros(0, np.int64), np.zeros(0, np.int64))
    )
