"""The instructions of one rank in a right order, their thread blocks, and their columns, as machine code."""

from __future__ import annotations

from typing import NamedTuple

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


class Directions(NamedTuple):
    """The directions of the connections of a rank, sorted by channel, role and peer, and which each instruction is of.

    work: chunks that each moves
    """

    channel: Column
    role: Column
    peer: Column
    work: Column
    of_op: Column


class MemoryBases(NamedTuple):
    """Where each buffer begins in the row of cells of a rank, and how many cells it has."""

    base: Column
    cells: int
