"""From the messages of a step to fragments, and when chunks arrive and leave, as machine code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
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


@compiled
def moments(
    rank: NarrowColumn, step: NarrowColumn, first: NarrowColumn, end: NarrowColumn, result: Matrix[np.int32]
) -> None:
    """Note in `result`, [ranks, chunks], the last of the rows in which a message takes a chunk from or to a rank."""
    for row in range(len(rank)):
        for chunk in range(first[row], end[row]):
            result[rank[row], chunk] = step[row]


@compiled
def is_exchange(messages: Messages, cells: Cells, marks: Marks) -> bool:
    """Return whether any rank receives into a cell that it sends from. `marks` are and stay 0. O(chunks moved)."""
    for row in range(len(messages.sender)):
        rank = messages.sender[row]
        for chunk in range(messages.first[row], messages.end[row]):
            bit = _bit(cells, rank, _current(cells, rank, chunk))
            marks[bit >> 3] |= 1 << (bit & 7)
    found = False
    for row in range(len(messages.receiver)):
        rank = messages.receiver[row]
        for chunk in range(messages.first[row], messages.end[row]):
            bit = _bit(cells, rank, _arrival(cells, rank, chunk))
            found = found or (marks[bit >> 3] >> (bit & 7)) & 1 == 1
    for row in range(len(messages.sender)):
        rank = messages.sender[row]
        for chunk in range(messages.first[row], messages.end[row]):
            marks[_bit(cells, rank, _current(cells, rank, chunk)) >> 3] = 0
    return found


@compiled
def step_fragments(messages: Messages, cells: Cells, marks: Marks, longest: int, across: bool) -> StepFragments:
    """Return the fragments of the messages, at most `longest` chunks each, and move the chunks.

    across: whether a fragment may hold several messages of a connection. What reaches a cell first is added to what lay
    there, what comes later to the sum. `marks` are and stay 0. O(chunks moved).
    """
    total = 0
    for row in range(len(messages.first)):
        total += messages.end[row] - messages.first[row]
    result = StepFragments(
        np.empty(total, dtype=np.int32),
        np.empty(total, dtype=np.int32),
        np.empty(total, dtype=np.int32),
        np.empty(total, dtype=np.int32),
        np.empty(total, dtype=np.int32),
    )
    number = -1
    previous = -1
    for row in range(len(messages.first)):
        sender, receiver = messages.sender[row], messages.receiver[row]
        is_new = previous < 0 or not across or not _is_same_connection(messages, previous, row)
        for chunk in range(messages.first[row], messages.end[row]):
            source, target = _current(cells, sender, chunk), _arrival(cells, receiver, chunk)
            operand = _operand(messages, cells, marks, row, chunk)
            if not is_new:
                length = result.chunks[number]
                is_new = (
                    length == longest
                    or source != result.source[number] + length
                    or operand != result.operand[number] + length
                    or target != result.target[number] + length
                )
            if is_new:
                number += 1
                result.row[number], result.chunks[number] = row, 0
                result.source[number], result.operand[number], result.target[number] = source, operand, target
            result.chunks[number] += 1
            is_new = False
        previous = row if messages.end[row] > messages.first[row] else previous
    _move(messages, cells, marks)
    return StepFragments(
        result.row[: number + 1],
        result.source[: number + 1],
        result.operand[: number + 1],
        result.target[: number + 1],
        result.chunks[: number + 1],
    )


@inlined
def _is_same_connection(messages: Messages, first: int, other: int) -> bool:
    return bool(
        messages.sender[first] == messages.sender[other]
        and messages.receiver[first] == messages.receiver[other]
        and messages.channel[first] == messages.channel[other]
    )


@inlined
def _operand(messages: Messages, cells: Cells, marks: Marks, row: int, chunk: int) -> int:
    """Return where the receiver holds what it adds, and mark that the cell has been reached; the target if it adds
    nothing."""
    receiver = messages.receiver[row]
    if cells.ordered != NOWHERE:
        return cells.ordered + chunk
    bit = receiver * cells.stride + chunk
    is_first = (marks[bit >> 3] >> (bit & 7)) & 1 == 0
    marks[bit >> 3] |= 1 << (bit & 7)
    adds_to_what_lay_there = messages.reduces[row] == 1 and is_first
    return int(cells.current[receiver, chunk] if adds_to_what_lay_there else cells.arrival[receiver, chunk])


@inlined
def _move(messages: Messages, cells: Cells, marks: Marks) -> None:
    """Let all that was sent be where it arrives, and clear the marks."""
    if cells.ordered != NOWHERE:
        return
    for row in range(len(messages.receiver)):
        receiver = messages.receiver[row]
        for chunk in range(messages.first[row], messages.end[row]):
            cells.current[receiver, chunk] = cells.arrival[receiver, chunk]
            marks[(receiver * cells.stride + chunk) >> 3] = 0


@inlined
def _current(cells: Cells, rank: int, chunk: int) -> int:
    return cells.ordered + chunk if cells.ordered != NOWHERE else int(cells.current[rank, chunk])


@inlined
def _arrival(cells: Cells, rank: int, chunk: int) -> int:
    return cells.ordered + chunk if cells.ordered != NOWHERE else int(cells.arrival[rank, chunk])


@inlined
def _bit(cells: Cells, rank: int, code: int) -> int:
    """Return the number of a cell among all cells of all ranks."""
    if cells.ordered != NOWHERE:
        return rank * cells.stride + (code & OFFSET_MASK)
    return (rank * BUFFER_COUNT + (code >> SHIFT)) * cells.stride + (code & OFFSET_MASK)


def marks_for(ranks: int, cells: Cells) -> Marks:
    """Return marks for all cells of so many ranks, none of them set."""
    buffers = BUFFER_COUNT if cells.ordered == NOWHERE else 1
    return np.zeros(ranks * buffers * cells.stride // 8 + 1, dtype=np.uint8)
