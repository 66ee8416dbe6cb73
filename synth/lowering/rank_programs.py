"""Distributes a rank's instructions over thread blocks."""

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
"""Block key (channel, role, peer): one direction of the connection to a rank, or local work (peer NO_PEER)."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockAssignment:
    """A rank's thread blocks, numbered from 0: `send_peer`, `recv_peer` (or NO_PEER) and `channel` of each block.

    of_op: for each instruction, the number of its block
    """

    send_peer: Column
    recv_peer: Column
    channel: Column
    of_op: Column


def assign_blocks(ops: UnscheduledOps, max_blocks: int, joins: Joins) -> BlockAssignment:
    """Assign a thread block to each direction of a rank's connections on each channel, and one to local work.

    O(instructions * log(instructions) + directions^2).

    Args:
        ops: The rank's instructions.
        max_blocks: Desired limit. Above it, sending and receiving blocks of the same channel are merged in pairs.
            Blocks with the fewest chunks are merged first, because sends and receives in one block take turns. The
            limit may still be exceeded, because a block can send to only one rank and receive from only one.
        joins: Pairs of directions that must share a block because a fused instruction uses both.
    """
    keys_of_ops = np.stack([ops.channel, ops.role, ops.peer])
    (channel, role, peer), direction = np.unique(keys_of_ops, axis=1, return_inverse=True)
    direction = direction.reshape(-1)
    send, recv = np.where(role == Role.SEND, peer, NO_PEER), np.where(role == Role.RECEIVE, peer, NO_PEER)
    if not joins and len(peer) <= max_blocks:
        return BlockAssignment(send, recv, channel, direction)
    triples = zip(channel.tolist(), map(Role, role.tolist()), peer.tolist(), strict=True)
    keys: list[Key] = list(triples)
    work = np.bincount(direction, weights=ops.chunks).astype(np.int64)
    joined = _joined(keys, work.tolist(), max_blocks, joins)
    for number, other in joined.items():
        if keys[number][1] == Role.SEND:
            send[other] = peer[number]
    for (channel_of_join, source), target in joins.items():
        # If all sends were fused into receives, the sending direction has no instructions left.
        send[keys.index((channel_of_join, Role.RECEIVE, source))] = target
    remaining = np.array([number for number in range(len(keys)) if number not in joined], dtype=np.int64)
    into = np.array([joined.get(number, number) for number in range(len(keys))], dtype=np.int64)
    of_op = np.searchsorted(remaining, into)[direction]
    return BlockAssignment(send[remaining], recv[remaining], channel[remaining], of_op)


def _joined(keys: list[Key], work: list[int], max_blocks: int, joins: Joins) -> dict[int, int]:
    """Map sending or local directions to the receiving directions whose blocks they share (indices of `keys`)."""
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
    """Pair sending and receiving directions of each channel: first those with the same peer, the rest in `order`."""
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
    """First cell (chunk slot) of each buffer in a rank's memory, and the total number of cells."""

    base: Column
    cells: int


def columns_of_blocks(ops: UnscheduledOps, blocks: BlockAssignment, layout: Layout) -> RankColumns:
    """Return a rank's instructions grouped by block, with all necessary waits but no redundant ones.

    `ops` must be in a valid sequential order.
    """
    memory = MemoryBases(np.array([layout.base(buffer) for buffer in BUFFERS]), layout.cells)
    first, rows, *waits = native.columns_of_ops(ops, blocks.of_op, len(blocks.channel), memory)
    columns = [blocks.send_peer, blocks.recv_peer, blocks.channel, first, *rows, *waits]
    return RankColumns(*columns)


class Grouping(NamedTuple):
    """Options for fusing instructions and grouping them into blocks; see `assign_blocks` and `fuse_ops`."""

    max_blocks: int
    fuse: bool
    unfused: Collection[tuple[int, int]]
    stores_sums: bool


def rank_program(placement: Placement, ops: UnscheduledOps, rank: int, grouping: Grouping) -> RankProgram:
    """Fuse the instructions `ops` of `rank`, distribute them over thread blocks, and return the rank's program."""
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
        # Runtimes cannot launch a rank that has no blocks.
        return RankProgram(*placement.used_chunks, scratch, (ThreadBlock(None, None, 0, ()),))
    columns = columns_of_blocks(ops, blocks, placement.shape.layout(rank, scratch))
    return RankProgram(*placement.used_chunks, scratch, ColumnBlocks(columns))
