"""A program as arrays, for kernels: instructions of all blocks of all ranks one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import Op, Program

Integers = NDArray[np.int64]

RECEIVES, SENDS, READS_SRC, WRITES_DST, READS_DST = 1, 2, 4, 8, 16
FLAGS, SRC, DST, COUNT, SAVED, FIRST_WAIT = 0, 1, 2, 3, 4, 5
FIRST, INCOMING, OUTGOING, BASE, FIRST_NEIGHBOUR = 0, 1, 2, 3, 4


class Code(NamedTuple):
    """Blocks are numbered through, rank by rank, so are instructions, block by block, and cells of memory.

    items:      int64[instructions + 1, 6]: what it does, a sum of flags; first cell of either operand, meaningless
                where the flags do not name it; chunks; number among those that are waited on, or -1; first wait
    waits:      int64[waits, 2]: an instruction that must be done, and its block
    blocks:     int64[blocks + 1, 5]: first instruction; connection received from and sent to, or -1; first block of
                the rank; first neighbour
    neighbours: int64[...]: the blocks that may wait for each block
    The last rows of `items` and `blocks` hold the ends of what begins in the others.
    """

    items: Matrix[np.int64]
    waits: Matrix[np.int64]
    blocks: Matrix[np.int64]
    neighbours: Integers


class FlatProgram(NamedTuple):
    """The code; the first block and the first cell of each rank, and the ends; the longest send per connection;
    how many instructions are waited on."""

    code: Code
    first_block: list[int]
    first_cell: list[int]
    longest: Integers
    waited: int


_FLAGS = {
    op: RECEIVES * op.receives
    + SENDS * op.sends
    + READS_SRC * op.reads_src
    + WRITES_DST * op.writes_dst
    + READS_DST * (op is Op.REDUCE)
    for op in Op
}


def flatten(program: Program) -> FlatProgram:
    """Return the structurally sound `program` as arrays. O(instructions)."""
    first_block = [0, *accumulate(len(rank.blocks) for rank in program.ranks)]
    first_cell = [0, *accumulate(layout_of(program, rank).cells for rank in range(len(program.ranks)))]
    lengths = [len(block.instructions) for rank in program.ranks for block in rank.blocks]
    first = [0, *accumulate(lengths)]
    items, waits = _instructions(program, first, first_block, first_cell)
    waited = np.unique(waits[:, 0])
    items[waited, SAVED] = np.arange(len(waited))
    blocks = np.full((len(lengths) + 1, 5), -1, dtype=np.int64)
    blocks[:, FIRST] = first
    blocks[:-1, BASE] = np.repeat(first_block[:-1], np.diff(first_block))
    connections = _connect(program, blocks)
    waiter = np.repeat(np.repeat(np.arange(len(lengths)), lengths), np.diff(items[:, FIRST_WAIT]))
    pairs = np.concatenate([np.stack([waits[:, 1], waiter], axis=1), *_ends(blocks, connections)])
    neighbours = _neighbours(pairs, blocks)
    longest = _longest(items, blocks, connections)
    return FlatProgram(Code(items, waits, blocks, neighbours), first_block, first_cell, longest, len(waited))


def _instructions(
    program: Program, first: Sequence[int], first_block: Sequence[int], first_cell: Sequence[int]
) -> tuple[Integers, Integers]:
    rows: list[tuple[int, ...]] = []
    waits: list[tuple[int, int]] = []
    for rank, rank_program in enumerate(program.ranks):
        layout = layout_of(program, rank)
        base = {name: first_cell[rank] + layout.base(name) for name in ("i", "o", "s")}
        for block in rank_program.blocks:
            for item in block.instructions:
                src, dst = base[item.src.buffer] + item.src.offset, base[item.dst.buffer] + item.dst.offset
                rows.append((_FLAGS[item.op], src, dst, item.count, -1, len(waits)))
                for wait in item.waits:
                    other = first_block[rank] + wait.block
                    waits.append((first[other] + wait.step, other))
    rows.append((0, 0, 0, 0, -1, len(waits)))
    return np.array(rows, dtype=np.int64), np.array(waits, dtype=np.int64).reshape(len(waits), 2)


def _connect(program: Program, blocks: Integers) -> int:
    """Number the connections, note in `blocks` which each block uses, and return how many there are."""
    numbers: dict[tuple[int, int, int], int] = {}
    each = ((rank, block) for rank, rank_program in enumerate(program.ranks) for block in rank_program.blocks)
    for number, (rank, block) in enumerate(each):
        source, target = block.recv_peer, block.send_peer
        if source is not None:
            blocks[number, INCOMING] = numbers.setdefault((source, rank, block.channel), len(numbers))
        if target is not None:
            blocks[number, OUTGOING] = numbers.setdefault((rank, target, block.channel), len(numbers))
    return len(numbers)


def _ends(blocks: Integers, connections: int) -> list[Integers]:
    """Return the pairs of blocks at the ends of each connection, both ways round."""
    ends = np.empty((connections, 2), dtype=np.int64)
    for side, column in enumerate((INCOMING, OUTGOING)):
        users = np.flatnonzero(blocks[:-1, column] >= 0)
        ends[blocks[users, column], side] = users
    return [ends, ends[:, ::-1]]


def _neighbours(pairs: Integers, blocks: Integers) -> Integers:
    """Return, for each block in turn, the others that are paired with it, and note in `blocks` where they begin."""
    distinct = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    blocks[:, FIRST_NEIGHBOUR] = np.searchsorted(distinct[:, 0], np.arange(len(blocks)))
    return np.ascontiguousarray(distinct[:, 1])


def _longest(items: Integers, blocks: Integers, connections: int) -> Integers:
    longest = np.ones(connections, dtype=np.int64)
    sends = np.flatnonzero(items[:, FLAGS] & SENDS)
    block = np.searchsorted(blocks[:, FIRST], sends, side="right") - 1
    np.maximum.at(longest, blocks[block, OUTGOING], items[sends, COUNT])
    return longest
