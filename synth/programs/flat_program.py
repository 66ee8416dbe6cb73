"""A program as arrays, for kernels: instructions of all blocks of all ranks one after another.

A native interpreter executes it on sets of contributions. Blocks are strictly sequential. A message is the part of an
instruction that travels at once; a connection holds at most `depth` messages that have been sent and not yet received.
A step starts when all its waits are met; a receiving step needs an arrived message, a sending step a free slot, a fused
step both.

A single loop iteration is enough. Real runtimes loop over parts of long chunks, every block for itself. Blocks have no
choices, so what a program can do does not depend on the order in which blocks go on: all of one iteration can be done
before the next begins, and then every queue is empty again. Iterations touch disjoint elements.

It finds pairs of accesses to one cell that nothing orders, by vector clocks over the blocks. A program has no branches,
so which accesses are ordered does not depend on how an execution happened to go: one execution finds a race if there is
one. Order comes from the sequence within a block, from waits, and from messages (what a rank did before it sent is
before what the receiver does after it received). Free slots of a queue are no order to rely on.

The clock per block and the last accesses per cell follow C. Flanagan, S. Freund, "FastTrack" (PLDI 2009): a read that
is before a later one of the same cell need not be kept.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.postconditions import ChunkValues
from chorale.synth.programs.program import BUFFERS, NO_PEER, OPS, Op, Program, RankColumns, columns_of, ends_of

Clocks = NDArray[np.int32]
"""int32[rows, components]: what the owner of a row knows to have happened in each block that counts."""

WRITER, WRITTEN, READ = 0, 1, 2
NEXT, READER, WHEN = 0, 1, 2


class Accesses(NamedTuple):
    """The last accesses of each cell. Blocks are counted from 1, so that 0 is none.

    last: int32[cells, 3]: block and time of the last write, first kept read since
    read: int32[1 + reads, 3]: next kept read of the cell, block, time; the first row counts the rows in use
    """

    last: Matrix[np.int32]
    read: Matrix[np.int32]


def no_accesses(cells: int, reads: int) -> Accesses:
    """Return room for the accesses of `cells` cells of which at most `reads` are reads."""
    return Accesses(np.zeros((cells, 3), dtype=np.int32), np.zeros((1 + reads, 3), dtype=np.int32))


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
    """Return the structurally sound `program` as arrays. O(instructions)."""
    ranks = [columns_of(rank) for rank in program.ranks]
    first_block = [0, *accumulate(columns.blocks for columns in ranks)]
    first_cell = [0, *accumulate(layout_of(program, rank).cells for rank in range(len(ranks)))]
    lengths = np.concatenate([columns.lengths for columns in ranks])
    first = ends_of(lengths)
    items, waits = _instructions(program, ranks, first, (first_block, first_cell))
    waited = np.unique(waits[:, 0])
    items[waited, SAVED] = np.arange(len(waited))
    blocks = np.full((len(lengths) + 1, 5), -1, dtype=np.int64)
    blocks[:, FIRST] = first
    blocks[:-1, BASE] = np.repeat(first_block[:-1], np.diff(first_block))
    connections = _connect(ranks, blocks)
    waiter = np.repeat(np.repeat(np.arange(len(lengths)), lengths), np.diff(items[:, FIRST_WAIT]))
    pairs = np.concatenate([np.stack([waits[:, 1], waiter], axis=1), *_ends(blocks, connections)])
    neighbours = _neighbours(pairs, blocks)
    longest = _longest(items, blocks, connections)
    return FlatProgram(Code(items, waits, blocks, neighbours), first_block, first_cell, longest, len(waited))


def _instructions(
    program: Program, ranks: Sequence[RankColumns], first: Integers, starts: tuple[Sequence[int], Sequence[int]]
) -> tuple[Integers, Integers]:
    """Return the rows of instructions and waits; `starts` are the first block and the first cell of each rank."""
    items = np.full((int(first[-1]) + 1, 6), -1, dtype=np.int64)
    waits = [np.zeros((0, 2), dtype=np.int64)]
    low, waits_before = 0, 0
    for rank, columns in enumerate(ranks):
        layout, first_block, first_cell = layout_of(program, rank), starts[0][rank], starts[1][rank]
        bases = first_cell + np.array([layout.base(buffer) for buffer in BUFFERS])
        rows = items[low : low + len(columns.op)]
        rows[:, FLAGS] = _FLAGS[columns.op]
        rows[:, SRC] = bases[columns.src_buffer] + columns.src_offset
        rows[:, DST] = bases[columns.dst_buffer] + columns.dst_offset
        rows[:, COUNT] = columns.count
        rows[:, FIRST_WAIT] = waits_before + columns.first_wait[:-1]
        other = first_block + columns.wait_block
        waits.append(np.stack([first[other] + columns.wait_step, other], axis=1))
        low, waits_before = low + len(rows), waits_before + len(other)
    items[-1] = (0, 0, 0, 0, -1, waits_before)
    return items, np.concatenate(waits)


def _connect(ranks: Sequence[RankColumns], blocks: Integers) -> int:
    """Number the connections, note in `blocks` which each block uses, and return how many there are."""
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


def _ends(blocks: Integers, connections: int) -> list[Integers]:
    """Return the pairs of blocks at the ends of each connection, both ways round."""
    ends = np.empty((connections, 2), dtype=np.int64)
    for side, column in enumerate((INCOMING, OUTGOING)):
        users = np.flatnonzero(blocks[:-1, column] >= 0)
        ends[blocks[users, column], side] = users
    return [ends, ends[:, ::-1]]


def _neighbours(pairs: Integers, blocks: Integers) -> Integers:
    """Return, for each block in turn, the others that are paired with it, and note in `blocks` where they begin."""
    apart = pairs[pairs[:, 0] != pairs[:, 1]]
    block, other = np.divmod(np.unique(apart[:, 0] * len(blocks) + apart[:, 1]), len(blocks))
    blocks[:, FIRST_NEIGHBOUR] = np.searchsorted(block, np.arange(len(blocks)))
    return np.ascontiguousarray(other)


def _longest(items: Integers, blocks: Integers, connections: int) -> Integers:
    longest = np.ones(connections, dtype=np.int64)
    sends = np.flatnonzero(items[:, FLAGS] & SENDS)
    block = np.searchsorted(blocks[:, FIRST], sends, side="right") - 1
    np.maximum.at(longest, blocks[block, OUTGOING], items[sends, COUNT])
    return longest


FORWARD, REVERSE, RANDOM = 0, 1, 2
RANDOM_REACH = 64
"""In random order, the next block is one of so many."""

OTHER_CHUNK, TWICE, RACE = 1, 2, 3
FIRST_MARK = -2
"""What a chunk is that comes from one that was never written: this, less the number of the instruction that read it."""
PC, MOVED = 0, 1
QUEUE, SPAN, SENT, RECEIVED = 0, 1, 2, 3
SPARE_CELLS = 2


class RunConditions(NamedTuple):
    """How a run goes: messages a connection holds, chunks of a message, order of the blocks.

    FORWARD: every block as far as it gets, the one that could go on first before others; REVERSE: the one that
    could go on last before others; RANDOM: one message at a time, in an order drawn from `seed`.
    first_saved, first_message: where in the clocks the rows begin that belong to what is waited on, and to messages
    """

    depth: int
    message_chunks: int
    order: int
    seed: int
    first_saved: int
    first_message: int


class ExecutionState(NamedTuple):
    """Where an execution stands.

    values:   memory of all ranks, then what is on its way and what it was added to, then the slots of all queues
    progress: int64[blocks, 2]: the next instruction, and how many of its chunks are done
    queues:   int64[connections, 4]: first cell, cells of a slot, messages sent and received so far
    clocks:   of all blocks, then of what is waited on, then of messages, unless only order in a rank counts;
              without rows, races are not looked for
    accesses: of all cells of memory
    fault:    int64[3]: kind of the first fault (0: none), its block, and for a race the other block
    """

    values: ChunkValues
    progress: Matrix[np.int64]
    queues: Matrix[np.int64]
    clocks: Matrix[np.int32]
    accesses: Accesses
    fault: Integers
