"""Converts a program into arrays for the kernel that executes it: the instructions of all ranks, block after block.

[`programs.cpp`](../kernels/cpp/programs.cpp) explains how the kernel executes a program and why one iteration of each
loop is enough.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import BUFFERS, NO_PEER, OPS, Op, Position, Program, RankColumns, ends_of

Integers = NDArray[np.int64]

RECEIVES, SENDS, READS_SRC, WRITES_DST, READS_DST = 1, 2, 4, 8, 16
FLAGS, SRC, DST, COUNT, SAVED, FIRST_WAIT = range(6)
FIRST, INCOMING, OUTGOING, BASE, FIRST_NEIGHBOUR = range(5)


class Code(NamedTuple):
    """Instructions and blocks as arrays. Instructions, blocks and memory cells are numbered across all ranks.

    items:      int64[instructions + 1, 6], one row per instruction: flags (what the instruction does); first source
                cell and first target cell, each valid only if the flags say that it is used; number of chunks; index
                among the instructions for which others wait, or -1; index of the instruction's first row in `waits`
    waits:      int64[waits, 2]: the instruction to wait for, and the block that contains it
    blocks:     int64[blocks + 1, 5], one row per block: first instruction; connection from which it receives, or -1;
                connection to which it sends, or -1; first block of its rank; index of its first entry in `neighbours`
    neighbours: int64[...]: for each block, the blocks that may have to wait for it

    `items` and `blocks` have one extra row at the end, so that the range of row k ends where the range of row k + 1
    begins.
    """

    items: Matrix[np.int64]
    waits: Matrix[np.int64]
    blocks: Matrix[np.int64]
    neighbours: Integers


class FlatProgram(NamedTuple):
    """A program as arrays.

    code: instructions and blocks
    first_block, first_cell: first block and first cell of each rank, followed by the total number
    longest: number of chunks in the longest send of each connection
    """

    code: Code
    first_block: list[int]
    first_cell: list[int]
    longest: Integers

    def block_of(self, number: int) -> tuple[int, int]:
        """Convert a block number across all ranks into (rank, block number within the rank)."""
        rank = bisect_right(self.first_block, number) - 1
        return rank, number - self.first_block[rank]

    def position(self, item: int) -> Position:
        """Convert an instruction number across all ranks into (rank, block, step)."""
        first = self.code.blocks[:-1, FIRST]
        block = int(np.searchsorted(first, item, side="right")) - 1
        return *self.block_of(block), item - int(first[block])


_FLAGS = np.array(
    [
        RECEIVES * op.receives
        + SENDS * op.sends
        + READS_SRC * op.reads_src
        + WRITES_DST * op.writes_dst
        + READS_DST * (op is Op.REDUCE)
        for op in OPS
    ]
)


def flatten(program: Program) -> FlatProgram:
    """Return `program` as arrays. It must be structurally sound. O(instructions)."""
    ranks = [body.columns for body in program.ranks]
    first_block = [0, *accumulate(columns.blocks for columns in ranks)]
    first_cell = [0, *accumulate(layout_of(program, rank).cells for rank in range(len(ranks)))]
    lengths = np.concatenate([columns.lengths for columns in ranks])
    first = ends_of(lengths)
    items, waits = _instructions(program, first, first_block, first_cell)
    waited = np.unique(waits[:, 0])
    items[waited, SAVED] = np.arange(len(waited))
    blocks = np.full((len(lengths) + 1, 5), -1, dtype=np.int64)
    blocks[:, FIRST] = first
    blocks[:-1, BASE] = np.repeat(first_block[:-1], np.diff(first_block))
    connections = _connect(ranks, blocks)
    ends = np.empty((connections, 2), dtype=np.int64)  # blocks at both ends of each connection
    for side, column in enumerate((INCOMING, OUTGOING)):
        users = np.flatnonzero(blocks[:-1, column] >= 0)
        ends[blocks[users, column], side] = users
    waiter = np.repeat(np.repeat(np.arange(len(lengths)), lengths), np.diff(items[:, FIRST_WAIT]))
    pairs = np.concatenate([np.stack([waits[:, 1], waiter], axis=1), ends, ends[:, ::-1]])
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    block, neighbours = np.divmod(np.unique(pairs[:, 0] * len(blocks) + pairs[:, 1]), len(blocks))
    blocks[:, FIRST_NEIGHBOUR] = np.searchsorted(block, np.arange(len(blocks)))
    longest = np.ones(connections, dtype=np.int64)
    sends = np.flatnonzero(items[:, FLAGS] & SENDS)
    sender = np.searchsorted(first, sends, side="right") - 1
    np.maximum.at(longest, blocks[sender, OUTGOING], items[sends, COUNT])
    return FlatProgram(Code(items, waits, blocks, np.ascontiguousarray(neighbours)), first_block, first_cell, longest)


def _instructions(
    program: Program, first: Integers, first_block: Sequence[int], first_cell: Sequence[int]
) -> tuple[Integers, Integers]:
    """Return the arrays `items` and `waits` of `Code`. `first`: number of each block's first instruction."""
    items = np.full((int(first[-1]) + 1, 6), -1, dtype=np.int64)
    waits = [np.zeros((0, 2), dtype=np.int64)]
    low, waits_before = 0, 0
    for rank, body in enumerate(program.ranks):
        columns, layout = body.columns, layout_of(program, rank)
        bases = first_cell[rank] + np.array([layout.base(buffer) for buffer in BUFFERS])
        rows = items[low : low + len(columns.op)]
        rows[:, FLAGS] = _FLAGS[columns.op]
        rows[:, SRC] = bases[columns.src_buffer] + columns.src_offset
        rows[:, DST] = bases[columns.dst_buffer] + columns.dst_offset
        rows[:, COUNT] = columns.count
        rows[:, FIRST_WAIT] = waits_before + columns.first_wait[:-1]
        other = first_block[rank] + columns.wait_block
        waits.append(np.stack([first[other] + columns.wait_step, other], axis=1))
        low, waits_before = low + len(rows), waits_before + len(other)
    items[-1] = (0, 0, 0, 0, -1, waits_before)
    return items, np.concatenate(waits)


def _connect(ranks: Sequence[RankColumns], blocks: Integers) -> int:
    """Number the connections, write the numbers into `blocks`, and return the number of connections."""
    numbers: dict[tuple[int, int, int], int] = {}
    block = 0
    for rank, columns in enumerate(ranks):
        peers = (columns.recv_peer.tolist(), columns.send_peer.tolist(), columns.channel.tolist())
        for source, target, channel in zip(*peers, strict=True):
            if source != NO_PEER:
                blocks[block, INCOMING] = numbers.setdefault((source, rank, channel), len(numbers))
            if target != NO_PEER:
                blocks[block, OUTGOING] = numbers.setdefault((rank, target, channel), len(numbers))
            block += 1
    return len(numbers)


FORWARD, REVERSE, RANDOM = range(3)
NO_CLOCKS, CLOCKS_OF_A_RANK, CLOCKS_OF_ALL_RANKS = range(3)
OTHER_CHUNK, TWICE, RACE = 1, 2, 3
FIRST_MARK = -2
"""If instruction k reads a chunk that was never written, its result gets the identity FIRST_MARK - k."""
PC, MOVED = 0, 1
SENT, RECEIVED = 2, 3


class RunConditions(NamedTuple):
    """Settings of one execution of a program.

    depth:          number of messages that a connection can hold
    message_chunks: number of chunks per message
    order:          which block runs next. FORWARD: the block that has been ready longest; REVERSE: the block that
                    became ready most recently; in both cases, it runs as far as it can. RANDOM: one message at a time,
                    chosen with `seed`
    seed:           seed for RANDOM
    clocks:         what orders accesses in the search for races. NO_CLOCKS: no search; CLOCKS_OF_A_RANK: only waits
                    within a rank; CLOCKS_OF_ALL_RANKS: also messages between ranks
    """

    depth: int
    message_chunks: int
    order: int
    seed: int
    clocks: int
