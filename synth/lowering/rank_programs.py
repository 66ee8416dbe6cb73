"""Turns fragments into the instructions of each rank, and distributes these over thread blocks.

If a rank forwards exactly the chunks that it received, the receive and the send are fused into one instruction. This
module also finds the blocks of a program that would deadlock.
"""

import sys
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.lowering.fragments import OFFSET_MASK, SHIFT, Fragments, Placement, contiguous_runs
from chorale.synth.lowering.vector_layout import Column, expand_intervals
from chorale.synth.programs.check_execution import MAX_WORDS, ExecutionRuns
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.program import (
    BUFFERS,
    NO_PEER,
    OPS,
    READS_SRC,
    WRITES_DST,
    ColumnBlocks,
    Op,
    Program,
    RankColumns,
    RankProgram,
    ThreadBlock,
    ends_of,
)


class Role(IntEnum):
    """The work of a thread block. If possible, sends and receives have separate blocks, which run in parallel."""

    RECEIVE = 0
    SEND = 1
    LOCAL = 2


class UnscheduledOps(NamedTuple):
    """The instructions of a rank as columns, without waits, in a valid sequential order.

    channel, role, peer: identify the block; `peer` is NO_PEER for local work
    op:       index into OPS
    src, dst: memory location of the first chunk (see `Codes`)
    chunks:   number of chunks
    """

    channel: Column
    role: Column
    peer: Column
    op: Column
    src: Column
    dst: Column
    chunks: Column


def ops_of_ranks(
    fragments: Fragments, placement: Placement, longest: int, sends_first: bool = False
) -> Iterator[UnscheduledOps]:
    """Yield each rank's instructions: the sends and receives of `fragments`, and final copies to the result's location.

    Instructions follow the order of fragments. In steps in which ranks receive into memory from which they send, the
    sends of a turn (see `Fragments`) come before its receives. With `sends_first`, all sends of a step come before its
    receives. A copy moves at most `longest` chunks. O(fragments * log(fragments) + chunks of all results).
    """
    ranks = placement.shape.ranks
    ends = (fragments.sender, fragments.receiver)
    orders = [np.argsort(column, kind="stable") for column in ends]
    bounds = [np.searchsorted(column[order], np.arange(ranks + 1)) for column, order in zip(ends, orders, strict=True)]
    for rank in range(ranks):
        sent, received = (order[at[rank] : at[rank + 1]] for order, at in zip(orders, bounds, strict=True))
        source, target = placement.misplaced(rank)
        first, copied = contiguous_runs((source, target), longest)
        number = np.concatenate([sent, received])
        receives = np.arange(len(number)) >= len(sent)
        is_late = receives & (sends_first | (fragments.exchanged[number] == 1))
        order = np.lexsort((receives, number, 2 * fragments.turn[number] + is_late, fragments.step[number]))
        number, receives = number[order], receives[order]
        op = np.where(fragments.reduces[number] == 1, _RRC, _RECV)
        moves = (
            fragments.channel[number],
            np.where(receives, Role.RECEIVE, Role.SEND),
            np.where(receives, fragments.sender[number], fragments.receiver[number]),
            np.where(receives, op, _SEND),
            np.where(receives, fragments.operand[number], fragments.source[number]),
            np.where(receives, fragments.target[number], fragments.source[number]),
            fragments.chunks[number],
        )
        block_of_copies = (np.full(len(first), each) for each in (0, Role.LOCAL, NO_PEER, OPS.index(Op.COPY)))
        copies = (*block_of_copies, source[first], target[first], copied)
        columns = (np.concatenate([move, copy], dtype=np.int64) for move, copy in zip(moves, copies, strict=True))
        yield UnscheduledOps(*columns)


_SCRATCH = BUFFERS.index("s")


Joins = dict[tuple[int, int], int]
"""Maps (channel, rank from which a block receives) to the rank to which it sends, for blocks that do both."""

_RECV, _SEND, _RRC = OPS.index(Op.RECV), OPS.index(Op.SEND), OPS.index(Op.RECV_REDUCE_COPY)
_RCS, _RRCS, _RRS = (OPS.index(op) for op in (Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY_SEND, Op.RECV_REDUCE_SEND))


def fuse_ops(
    unfused: UnscheduledOps, src: Column, dst: Column, needed_cells: NDArray[np.bool_], *, stores_sums: bool = False
) -> tuple[UnscheduledOps, Joins]:
    """Fuse receives and sends of a rank. Return (instructions, pairs of directions that must share a block).

    A send can be fused with the receive that wrote everything it sends. The receiving and the sending direction
    then share a block, in which their instructions take turns. Therefore directions are only joined if few of their
    instructions remain unfused. The order of messages on each connection does not change.
    O(cells touched + instructions * log(instructions)).

    Args:
        unfused: The instructions.
        src: First cell that each instruction reads; -1 for none.
        dst: First cell that each instruction writes; -1 for none.
        needed_cells: bool[cells], whether a cell is needed after the last instruction.
        stores_sums: Whether to store a sum even if the rank does not read it afterwards.
    """
    receives, sends = _candidates(unfused, src, dst, len(needed_cells))
    keys, key = np.unique(np.stack([unfused.channel, unfused.role, unfused.peer], axis=1), axis=0, return_inverse=True)
    key = key.reshape(-1)
    op = unfused.op.copy()
    gone = np.zeros(len(op), dtype=np.bool_)
    joins: Joins = {}
    for into, out in _pairs(key[receives], key[sends]):
        channel, _, source = keys[into].tolist()
        chosen = (key[receives] == into) & (key[sends] == out)
        connection = np.flatnonzero(key == out).tolist()
        # Fuse only those pairs that keep the order of the sends.
        position = {send: number for number, send in enumerate(connection)}
        pairs: list[tuple[int, int]] = []
        last = -1
        for receive, send in zip(receives[chosen].tolist(), sends[chosen].tolist(), strict=True):
            number = position[send]
            before = connection[number - 1] if number else -1
            if number > last and (number == last + 1 or before < receive):
                pairs.append((receive, send))
                last = number
        alone = len(connection) + int((key == into).sum()) - 2 * len(pairs)
        # The first send and the last receive of a chain can never be fused, so they do not count.
        if len(pairs) < 2 or 2 * (alone - 2) > len(pairs):
            continue
        for receive, send in pairs:
            op[receive] = _RCS if op[receive] == _RECV else _RRCS
            gone[send] = True
        joins[channel, source] = int(keys[out, 2])
    src, dst = np.where(op == _RCS, -1, src)[~gone], dst[~gone]
    remaining = UnscheduledOps(*(column[~gone] for column in unfused._replace(op=op)))
    needless = ~native.is_needed(src, dst, remaining.chunks, needed_cells) & (remaining.op == _RRCS) & (not stores_sums)
    remaining = remaining._replace(
        op=np.where(needless, _RRS, remaining.op), dst=np.where(needless, remaining.src, remaining.dst)
    )
    return remaining, joins


def _candidates(unfused: UnscheduledOps, src: Column, dst: Column, cells: int) -> tuple[Column, Column]:
    """Return (receives, sends): pairs of instructions that could be fused, in the order of the receives."""
    offsets, earlier = native.dependences(src, dst, unfused.chunks, cells)
    sends = np.flatnonzero((unfused.op == _SEND) & (np.diff(offsets) == 1))
    receives = earlier[offsets[sends]]
    fits = (unfused.role[receives] == Role.RECEIVE) & (unfused.channel[receives] == unfused.channel[sends])
    fits &= (dst[receives] == src[sends]) & (unfused.chunks[receives] == unfused.chunks[sends])
    order = np.argsort(receives[fits], kind="stable")
    return receives[fits][order], sends[fits][order]


def _pairs(into: Column, out: Column) -> list[tuple[int, int]]:
    """Return disjoint pairs (receiving direction, sending direction), chosen by how many instructions can be fused.

    into, out: the directions of each receive and send that could be fused
    """
    pairs, counts = np.unique(np.stack([into, out], axis=1), axis=0, return_counts=True)
    taken: set[int] = set()
    found = []
    for index in np.argsort(-counts, kind="stable").tolist():
        first, second = pairs[index].tolist()
        if taken.isdisjoint((first, second)):
            taken.update((first, second))
            found.append((first, second))
    return found


def hanging_blocks(program: Program) -> list[tuple[int, int]]:
    """Return (rank, block) of each block that hangs if every step sends one message.

    If none hangs, return the blocks that hang if every chunk is a separate message. O(messages * blocks that wait for
    one another).
    """
    runs = ExecutionRuns(program, MAX_WORDS)
    return runs.blocked(runs.longest_message) or runs.blocked(1)


UNBOUNDED = sys.maxsize

Key = tuple[int, Role, int]
"""Identifies a block by (channel, role, peer): one direction of the connection to a rank, or local work (NO_PEER)."""


def assign_blocks(ops: UnscheduledOps, max_blocks: int, joins: Joins) -> tuple[Column, Column, Column, Column]:
    """Assign a thread block to each direction of a rank's connections on each channel, and one to local work.

    O(instructions * log(instructions) + directions^2).

    Args:
        ops: The rank's instructions.
        max_blocks: Desired limit. Above it, sending and receiving blocks of the same channel are merged in pairs.
            Blocks with the fewest chunks are merged first, because sends and receives in one block take turns. The
            limit may still be exceeded, because a block can send to only one rank and receive from only one.
        joins: Pairs of directions that must share a block because a fused instruction uses both.

    Returns:
        Per block: send_peer, recv_peer (or NO_PEER) and channel; then, per instruction, the number of its block.
    """
    keys_of_ops = np.stack([ops.channel, ops.role, ops.peer])
    (channel, role, peer), direction = np.unique(keys_of_ops, axis=1, return_inverse=True)
    direction = direction.reshape(-1)
    send, recv = np.where(role == Role.SEND, peer, NO_PEER), np.where(role == Role.RECEIVE, peer, NO_PEER)
    if not joins and len(peer) <= max_blocks:
        return send, recv, channel, direction
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
    return send[remaining], recv[remaining], channel[remaining], of_op


def _joined(keys: list[Key], work: list[int], max_blocks: int, joins: Joins) -> dict[int, int]:
    """Choose directions that share a block. Return {sending or local: receiving direction}, as indices of `keys`."""
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
    pairs = _pairs_of_directions(keys, [number for number in order if number not in closed])
    pairs.sort(key=lambda pair: work[pair[0]] + work[pair[1]])
    receives = [number for number in order if keys[number][1] == Role.RECEIVE]
    local = [(number, receives[0]) for number in order if keys[number][1] == Role.LOCAL and receives]
    return required | dict([*local, *pairs][:excess])


def _pairs_of_directions(keys: list[Key], order: list[int]) -> list[tuple[int, int]]:
    """Pair a channel's sending and receiving directions: first those with the same peer, then the rest in `order`."""
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


def rank_program(
    placement: Placement, ops: UnscheduledOps, rank: int, max_blocks: int, fuse: bool, stores_sums: bool
) -> RankProgram:
    """Fuse the instructions `ops` of `rank`, distribute them over thread blocks, and return the rank's program."""
    scratch = placement.scratch_chunks[rank]
    joins: Joins = {}
    if fuse:
        layout = placement.shape.layout(rank, scratch)
        result = placement.result_cells(rank, layout)
        ops, joins = fuse_ops(ops, *_cells(ops, layout), result, stores_sums=stores_sums)
        # Renumber the scratch chunks that are still used, without gaps.
        reads = READS_SRC[ops.op] & (ops.src >> SHIFT == _SCRATCH)
        writes = WRITES_DST[ops.op] & (ops.dst >> SHIFT == _SCRATCH)
        first = np.concatenate([ops.src[reads], ops.dst[writes]])
        used = np.unique(expand_intervals(first, np.concatenate([ops.chunks[reads], ops.chunks[writes]]))[1])
        scratch = len(used)
        src, dst = (_SCRATCH << SHIFT) + np.searchsorted(used, (ops.src, ops.dst))
        # An operand that an instruction ignores is set to its other operand.
        src, dst = np.where(reads, src, ops.src), np.where(writes, dst, ops.dst)
        src = np.where(READS_SRC[ops.op], src, dst)
        ops = ops._replace(src=src, dst=np.where(WRITES_DST[ops.op], dst, src))
    send_peer, recv_peer, channel, of_op = assign_blocks(ops, max_blocks, joins)
    if not len(channel):
        # Runtimes cannot launch a rank that has no blocks.
        return RankProgram(*placement.used_chunks, scratch, (ThreadBlock(None, None, 0, ()),))
    layout = placement.shape.layout(rank, scratch)
    # Group the instructions by block, with all necessary waits but no redundant ones.
    count = len(channel)
    offsets, awaited = native.necessary_waits(*_cells(ops, layout), ops.chunks, layout.cells, of_op, count)
    order = np.argsort(of_op, kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    first = ends_of(np.bincount(of_op, minlength=count))
    waiting, waited = np.repeat(place, np.diff(offsets)), place[awaited]
    waited = waited[np.lexsort((waited, waiting))]
    wait_block = of_op[order[waited]]
    waits = [ends_of(np.bincount(waiting, minlength=len(order))), wait_block, waited - first[wait_block]]
    places = (column for code in (ops.src, ops.dst) for column in (code >> SHIFT, code & OFFSET_MASK))
    rows = (column[order] for column in (ops.op, *places, ops.chunks))
    columns = RankColumns(send_peer, recv_peer, channel, first, *rows, *waits)
    return RankProgram(*placement.used_chunks, scratch, ColumnBlocks(columns))


def _cells(ops: UnscheduledOps, layout: Layout) -> tuple[Column, Column]:
    """Return the first cell that each instruction reads and the first that it writes; -1 for none."""
    bases = np.array([layout.base(buffer) for buffer in BUFFERS])
    src, dst = (bases[code >> SHIFT] + (code & OFFSET_MASK) for code in (ops.src, ops.dst))
    return np.where(READS_SRC[ops.op], src, -1), np.where(WRITES_DST[ops.op], dst, -1)
