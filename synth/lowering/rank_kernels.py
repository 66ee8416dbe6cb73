"""The instructions of one rank in a right order, their thread blocks, and their columns, as machine code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.lowering.dependences import dependences, necessary_waits
from chorale.synth.lowering.fragment_kernels import OFFSET_MASK, SHIFT
from chorale.synth.lowering.vector_layout import Column, NarrowColumn
from chorale.synth.programs.program import OPS, Op

SEND, RECV, REDUCE, COPY = (OPS.index(op) for op in (Op.SEND, Op.RECV, Op.RECV_REDUCE_COPY, Op.COPY))
RECV_COPY_SEND, RECV_REDUCE_SEND = OPS.index(Op.RECV_COPY_SEND), OPS.index(Op.RECV_REDUCE_SEND)
RECEIVE_ROLE, SEND_ROLE, LOCAL_ROLE = range(3)
ROLE_COUNT = 3
NO_PEER = -1
ROWS = 6  # of instructions: op, source buffer and offset, target buffer and offset, chunks


class FragmentColumns(NamedTuple):
    """Columns of `Fragments`."""

    step: NarrowColumn
    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    reduces: NarrowColumn
    source: NarrowColumn
    operand: NarrowColumn
    target: NarrowColumn
    chunks: NarrowColumn
    exchanged: NarrowColumn
    turn: NarrowColumn


class OpColumns(NamedTuple):
    """Columns of `UnscheduledOps`."""

    channel: Column
    role: Column
    peer: Column
    op: Column
    src: Column
    dst: Column
    chunks: Column


@compiled
def ordered_ops(fragments: FragmentColumns, sent: Column, received: Column, sends_first: bool, extra: int) -> OpColumns:
    """Return the instructions that send and receive the fragments with the numbers `sent` and `received`, which rise,
    and room for `extra` ones after them.

    They are in the order of steps and turns; in a turn, exchanged fragments (all of them with `sends_first`) are sent
    before any is received; else in the order of fragments, each sent before it is received.
    O(instructions * log(those of a step)).
    """
    total = len(sent) + len(received)
    columns = OpColumns(
        np.empty(total + extra, dtype=np.int64),
        np.empty(total + extra, dtype=np.int64),
        np.empty(total + extra, dtype=np.int64),
        np.empty(total + extra, dtype=np.int64),
        np.empty(total + extra, dtype=np.int64),
        np.empty(total + extra, dtype=np.int64),
        np.empty(total + extra, dtype=np.int64),
    )
    number = np.empty(total, dtype=np.int64)  # of fragments, twice; one more for what is received
    out, into = 0, 0
    for index in range(total):
        if into == len(received) or (out < len(sent) and sent[out] <= received[into]):
            number[index], out = 2 * sent[out], out + 1
        else:
            number[index], into = 2 * received[into] + 1, into + 1
    first = 0
    while first < total:
        end, is_sorted = first, True
        while end < total and fragments.step[number[end] >> 1] == fragments.step[number[first] >> 1]:
            is_sorted = is_sorted and _urgency(fragments, number[end], sends_first) == 0
            end += 1
        if not is_sorted:
            keys = np.empty(end - first, dtype=np.int64)
            for index in range(first, end):
                # The place makes all keys differ.
                keys[index - first] = _urgency(fragments, number[index], sends_first) * total + index - first
            before = number[first:end].copy()
            place = first
            for index in np.argsort(keys):
                number[place], place = before[index], place + 1
        first = end
    for index in range(total):
        _fill(columns, index, fragments, number[index] >> 1, number[index] & 1 == 1)
    return columns


@inlined
def _urgency(fragments: FragmentColumns, number: int, sends_first: bool) -> int:
    """Return what an instruction is sorted by in its step: its turn, then whether it receives after all sends."""
    fragment = number >> 1
    is_late = number & 1 == 1 and (sends_first or fragments.exchanged[fragment] == 1)
    return int(2 * fragments.turn[fragment] + is_late)


@inlined
def _fill(columns: OpColumns, index: int, fragments: FragmentColumns, fragment: int, receives: bool) -> None:
    columns.channel[index], columns.chunks[index] = fragments.channel[fragment], fragments.chunks[fragment]
    if receives:
        columns.role[index], columns.peer[index] = RECEIVE_ROLE, fragments.sender[fragment]
        columns.op[index] = REDUCE if fragments.reduces[fragment] == 1 else RECV
        columns.src[index], columns.dst[index] = fragments.operand[fragment], fragments.target[fragment]
    else:
        columns.role[index], columns.peer[index] = SEND_ROLE, fragments.receiver[fragment]
        columns.op[index] = SEND
        columns.src[index], columns.dst[index] = fragments.source[fragment], fragments.source[fragment]


class Directions(NamedTuple):
    """The directions of the connections of a rank, sorted by channel, role and peer, and which each instruction is of.

    work: chunks that each moves
    """

    channel: Column
    role: Column
    peer: Column
    work: Column
    of_op: Column


@compiled
def directions_of(channel: Column, role: Column, peer: Column, count: Column) -> Directions:
    """Return the directions of some instructions. O(instructions * log(directions) + directions^2)."""
    total = len(channel)
    peers = 2
    for op in range(total):
        peers = max(peers, peer[op] + 2)
    keys = np.empty(total, dtype=np.int64)  # sorted; the first `used` are in use
    used = 0
    for op in range(total):
        key = _key(channel[op], role[op], peer[op], peers)
        position = _position(keys, used, key)
        if position == used or keys[position] != key:
            for index in range(used, position, -1):
                keys[index] = keys[index - 1]
            keys[position] = key
            used += 1
    result = Directions(
        np.empty(used, dtype=np.int64),
        np.empty(used, dtype=np.int64),
        np.empty(used, dtype=np.int64),
        np.zeros(used, dtype=np.int64),
        np.empty(total, dtype=np.int64),
    )
    for op in range(total):
        position = _position(keys, used, _key(channel[op], role[op], peer[op], peers))
        result.channel[position], result.role[position], result.peer[position] = channel[op], role[op], peer[op]
        result.work[position] += count[op]
        result.of_op[op] = position
    return result


@inlined
def _key(channel: int, role: int, peer: int, peers: int) -> int:
    return (channel * ROLE_COUNT + role) * peers + peer + 1


@inlined
def _position(keys: Column, used: int, key: int) -> int:
    """Return how many of the first `used` keys are smaller."""
    low, high = 0, used
    while low < high:
        middle = (low + high) // 2
        if keys[middle] < key:
            low = middle + 1
        else:
            high = middle
    return low


class MemoryBases(NamedTuple):
    """Where each buffer begins in the row of cells of a rank, and how many cells it has."""

    base: Column
    cells: int


@compiled
def columns_of_ops(
    ops: OpColumns, blocks: Column, block_count: int, memory: MemoryBases
) -> tuple[Column, Matrix[np.int64], Column, Column, Column]:
    """Return instructions block by block with all waits that they need and none that follow from others.

    ops, blocks: in a valid sequential order, and the block of each. Returns the first of each block (and the end), the
    instructions as rows (op, source buffer and offset, target buffer and offset, chunks), the first wait of each (and
    the end), and block and step of each wait. As `dependences` and `necessary_waits` together.
    """
    total = len(blocks)
    src, dst = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for op in range(total):
        kind = ops.op[op]
        src[op] = -1 if kind == RECV else memory.base[ops.src[op] >> SHIFT] + (ops.src[op] & OFFSET_MASK)
        dst[op] = -1 if kind == SEND else memory.base[ops.dst[op] >> SHIFT] + (ops.dst[op] & OFFSET_MASK)
        if kind == RECV_COPY_SEND:
            src[op] = -1
        if kind == RECV_REDUCE_SEND:
            dst[op] = -1
    earlier_offsets, earlier = dependences(src, dst, ops.chunks, memory.cells)
    offsets, waits = necessary_waits(blocks, block_count, earlier_offsets, earlier)
    first, order, step = _by_block(blocks, block_count)
    rows = np.empty((ROWS, total), dtype=np.int64)
    for position in range(total):
        op = order[position]
        rows[0, position], rows[5, position] = ops.op[op], ops.chunks[op]
        rows[1, position], rows[2, position] = ops.src[op] >> SHIFT, ops.src[op] & OFFSET_MASK
        rows[3, position], rows[4, position] = ops.dst[op] >> SHIFT, ops.dst[op] & OFFSET_MASK
    first_wait = np.zeros(total + 1, dtype=np.int64)
    places = np.empty(len(waits), dtype=np.int64)  # of instructions waited for, in blocks and steps
    count = 0
    for position in range(total):
        op, begin = order[position], count
        for other in waits[offsets[op] : offsets[op + 1]]:
            places[count], count = first[blocks[other]] + step[other], count + 1
        if count > begin + 1:
            places[begin:count] = np.sort(places[begin:count])
        first_wait[position + 1] = count
    wait_block, wait_step = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
    for wait in range(count):
        op = order[places[wait]]
        wait_block[wait], wait_step[wait] = blocks[op], step[op]
    return first, rows, first_wait, wait_block, wait_step


@inlined
def _by_block(blocks: Column, block_count: int) -> tuple[Column, Column, Column]:
    """Return the first instruction of each block (and the end of the last), all by block, and the step of each."""
    total = len(blocks)
    first = np.zeros(block_count + 1, dtype=np.int64)
    for op in range(total):
        first[blocks[op] + 1] += 1
    for number in range(block_count):
        first[number + 1] += first[number]
    end = first.copy()
    order, step = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    for op in range(total):
        order[end[blocks[op]]] = op
        step[op] = end[blocks[op]] - first[blocks[op]]
        end[blocks[op]] += 1
    return first, order, step
