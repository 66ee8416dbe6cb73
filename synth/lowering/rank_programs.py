"""From the instructions of a rank to its thread blocks."""

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from chorale.synth.kernels import native
from chorale.synth.lowering.fusion import (
    NO_PEER,
    Joins,
    Role,
    UnscheduledOps,
    fuse_ops,
    operand_cells,
    with_dense_scratch,
)
from chorale.synth.lowering.placement import Placement
from chorale.synth.lowering.vector_layout import Column
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import BUFFERS, ColumnBlocks, RankColumns, RankProgram, ThreadBlock

UNBOUNDED = sys.maxsize

Key = tuple[int, Role, int]
"""Channel, role, peer: the work for one direction of one connection, or local work."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockAssignment:
    """The thread blocks of a rank: their ranks to send to and to receive from (NO_PEER for none) and their channels;
    and the number of the block of each instruction."""

    send_peer: Column
    recv_peer: Column
    channel: Column
    of_op: Column


class Directions(NamedTuple):
    """The directions of the connections of a rank, sorted by channel, role and peer, and which each instruction is of.

    work: chunks that each moves
    """

    channel: Column
    role: Column
    peer: Column
    work: Column
    of_op: Column


def assign_blocks(ops: UnscheduledOps, max_blocks: int, joins: Joins) -> BlockAssignment:
    """Return a block for each direction of each connection of a rank and channel, and one for local work.

    `joins` says which directions share a block in any case. Where there are more than `max_blocks`, a sending and a
    receiving block of one channel become one, those with the fewest chunks first, because sends and receives of one
    block take turns. There may be more than `max_blocks` even so: a block has one rank to send to.
    O(instructions * log(directions) + directions^2).
    """
    directions = Directions(*native.directions_of(ops.channel, ops.role, ops.peer, ops.chunks))
    channel, role, peer = directions.channel, directions.role, directions.peer
    send, recv = np.where(role == Role.SEND, peer, NO_PEER), np.where(role == Role.RECEIVE, peer, NO_PEER)
    if not joins and len(peer) <= max_blocks:
        return BlockAssignment(send, recv, channel, directions.of_op)
    triples = zip(channel.tolist(), map(Role, role.tolist()), peer.tolist(), strict=True)
    keys: list[Key] = list(triples)
    joined = _joined(keys, directions.work.tolist(), max_blocks, joins)
    for number, other in joined.items():
        if keys[number][1] == Role.SEND:
            send[other] = peer[number]
    for (channel_of_join, source), target in joins.items():
        # Its send may be gone: all of it is done by what receives.
        send[keys.index((channel_of_join, Role.RECEIVE, source))] = target
    remaining = np.array([number for number in range(len(keys)) if number not in joined], dtype=np.int64)
    into = np.array([joined.get(number, number) for number in range(len(keys))], dtype=np.int64)
    of_op = np.searchsorted(remaining, into)[directions.of_op]
    return BlockAssignment(send[remaining], recv[remaining], channel[remaining], of_op)


def _joined(keys: list[Key], work: list[int], max_blocks: int, joins: Joins) -> dict[int, int]:
    """Return which of `keys` (that send, or work locally) join which others (that receive)."""
    number_of = {key: number for number, key in enumerate(keys)}
    required = {
        number_of[channel, Role.SEND, target]: number_of[channel, Role.RECEIVE, source]
        for (channel, source), target in joins.items()
        if (channel, Role.SEND, target) in number_of
    }
    excess = len(keys) - len(required) - max_blocks
    if excess <= 0:
        return required
    order = sorted(range(len(keys)), key=lambda number: (work[number], number))
    closed = {*required, *(number_of[channel, Role.RECEIVE, source] for channel, source in joins)}
    pairs = _pairs(keys, [number for number in order if number not in closed])
    pairs.sort(key=lambda pair: work[pair[0]] + work[pair[1]])
    receives = [number for number in order if keys[number][1] == Role.RECEIVE]
    local = [(number, receives[0]) for number in order if keys[number][1] == Role.LOCAL and receives]
    return required | dict([*local, *pairs][:excess])


def _pairs(keys: list[Key], order: list[int]) -> list[tuple[int, int]]:
    """Return pairs of a sending and a receiving key of one channel: those with the same peer, then in `order`."""
    pairs: list[tuple[int, int]] = []
    for channel in sorted({keys[number][0] for number in order}):
        sends, receives = (
            [number for number in order if keys[number][:2] == (channel, role)] for role in (Role.SEND, Role.RECEIVE)
        )
        peers = {keys[number][2]: number for number in receives}
        mutual = [(number, peers[keys[number][2]]) for number in sends if keys[number][2] in peers]
        taken = {number for pair in mutual for number in pair}
        rest = zip(*([n for n in side if n not in taken] for side in (sends, receives)), strict=False)
        pairs += [*mutual, *rest]
    return pairs


class MemoryBases(NamedTuple):
    """Where each buffer begins in the row of cells of a rank, and how many cells it has."""

    base: Column
    cells: int


def columns_of_blocks(ops: UnscheduledOps, blocks: BlockAssignment, layout: Layout) -> RankColumns:
    """Return the instructions of each of the `blocks` of a rank with all waits they need and none that follow from
    others. `ops` are in a valid sequential order."""
    memory = MemoryBases(np.array([layout.base(buffer) for buffer in BUFFERS]), layout.cells)
    first, rows, *waits = native.columns_of_ops(ops, blocks.of_op, len(blocks.channel), memory)
    columns = [blocks.send_peer, blocks.recv_peer, blocks.channel, first, *rows, *waits]
    return RankColumns(*columns)


class Grouping(NamedTuple):
    """How the instructions of a rank become blocks; stores_sums: whether sums are stored that only others need."""

    max_blocks: int
    fuse: bool
    unfused: Collection[tuple[int, int]]
    stores_sums: bool


def rank_program(placement: Placement, ops: UnscheduledOps, rank: int, grouping: Grouping) -> RankProgram:
    """Return the program of `rank` with the instructions `ops`, fused and in blocks as `grouping` says."""
    scratch = placement.scratch_chunks[rank]
    joins: Joins = {}
    if grouping.fuse:
        layout = placement.shape.layout(rank, scratch)
        result = placement.result_cells(rank, layout)
        operands = operand_cells(ops, layout)
        ops, joins = fuse_ops(ops, *operands, result, grouping.unfused, stores_sums=grouping.stores_sums)
        ops, scratch = with_dense_scratch(ops)
    blocks = assign_blocks(ops, grouping.max_blocks, joins)
    if not len(blocks.channel):
        # Runtimes cannot launch a rank without a block.
        return RankProgram(*placement.used_chunks, scratch, (ThreadBlock(None, None, 0, ()),))
    columns = columns_of_blocks(ops, blocks, placement.shape.layout(rank, scratch))
    return RankProgram(*placement.used_chunks, scratch, ColumnBlocks(columns))
