"""A target's limits as data, the check of a program against them, and the number of chunks per message.

The MSCCL runtimes choose the number of chunks per message from the vector size. A connection's buffer is divided into
slots, and a message contains as many complete chunks as fit into one slot. Large vectors therefore need more messages,
so a program that is correct for small vectors may deadlock with large ones. Source: the code that chooses the chunks
per message in the kernels of microsoft/msccl and Azure/msccl-executor-nccl.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from chorale.synth.programs.program import (
    NO_PEER,
    OPS,
    Column,
    Op,
    Program,
    ProgramViolation,
    Protocol,
    RankColumns,
)

MOST_CHUNKS = 71
"""Maximum number of chunks in one message, and in one step."""


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """Default sizes in bytes of a connection's buffer and of its slots. A message may fill one slot."""

    buffer_bytes: int
    slot_bytes: int

    def chunks_at(self, size_bytes: int, chunks: int) -> int:
        """Return the number of chunks per message for a vector of `size_bytes` (0: any size) with `chunks` chunks."""
        if size_bytes == 0:
            return 1
        return min(max(self.slot_bytes // -(-size_bytes // chunks), 1), MOST_CHUNKS)

    def largest_size(self, message_chunks: int, chunks: int) -> int | None:
        """Return the largest vector size in bytes for `message_chunks` or more chunks per message; None: no limit."""
        return None if message_chunks <= 1 else chunks * (self.slot_bytes // message_chunks)


MSCCL_BUFFERS: Mapping[Protocol, MessageBuffer] = {
    "Simple": MessageBuffer(4 * 2**20, 2 * 2**20),
    "LL": MessageBuffer(512 * 2**10, 32 * 2**10),
    "LL128": MessageBuffer(4_915_200, 576_000),
}
"""Buffers of both MSCCL runtimes, unless NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE or NCCL_LL128_BUFFSIZE are set."""


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """The largest values that the reader of a target accepts.

    ranks:                    ranks in a program
    channels:                 channels in a program
    threadblocks:             thread blocks per rank
    resident_threadblocks:    thread blocks per rank that can run simultaneously; with more, a program may deadlock
    waitable_threadblocks:    other blocks can only wait for blocks with an id below this number
    blocks_per_direction:     blocks per rank and channel that send (and likewise that receive)
    steps:                    steps per thread block as written, including `nop`
    waits:                    total waits per thread block
    single_wait:              whether a step has at most one wait, so that each further wait needs a `nop`
    count:                    chunks per instruction
    offset:                   largest index of an operand's first chunk
    elements_per_rank:        XML elements that the reader keeps for a rank: root, all ranks, own blocks and steps
    elements:                 XML elements in a file
    fused_reductions:         maximum length of a run of local reductions that the runtime may fuse; None: no fusion
    largest_max_bytes:        largest vector size in bytes that a file may state; None: no limit
    one_sided_operations:     operations per block if the runtime has puts and signals; None if it sends and receives
    alltoall_in_place:        whether an alltoall can be in place
    alignment_bytes:          chunk sizes must be multiples of this number
    message_buffers:          buffers that limit the chunks per message; None if messages may have one chunk at any size
    """

    ranks: int
    channels: int
    threadblocks: int
    resident_threadblocks: int
    waitable_threadblocks: int
    blocks_per_direction: int
    steps: int
    waits: int
    single_wait: bool
    count: int
    offset: int
    elements_per_rank: int
    elements: int
    fused_reductions: int | None
    largest_max_bytes: int | None
    one_sided_operations: int | None
    alltoall_in_place: bool
    alignment_bytes: int
    message_buffers: Mapping[Protocol, MessageBuffer] | None


def written_steps(columns: RankColumns, limits: TargetLimits) -> Column:
    """Return the number of steps of each block in the file, including `nop` steps for additional waits."""
    if not limits.single_wait:
        return columns.lengths
    return np.diff(np.concatenate([[0], np.cumsum(np.maximum(columns.waits, 1))])[columns.first])


def limit_violations(program: Program, limits: TargetLimits) -> list[ProgramViolation]:
    """Return a violation for every limit that `program` exceeds. O(instructions)."""
    ranks = [body.columns for body in program.ranks]
    elements = [columns.blocks + int(written_steps(columns, limits).sum()) for columns in ranks]
    found = [
        *_above("ranks", len(ranks), limits.ranks),
        *_above("channels", program.channels, limits.channels),
        *_above("elements of the file", 1 + len(ranks) + sum(elements), limits.elements),
    ]
    if limits.largest_max_bytes is not None:
        found += _above("bytes of the vector", program.max_bytes, limits.largest_max_bytes)
    for rank, columns in enumerate(ranks):
        found += _above("thread blocks of a rank", columns.blocks, limits.threadblocks, rank)
        kept = 1 + len(ranks) + elements[rank]
        found += _above("elements kept for one rank", kept, limits.elements_per_rank, rank)
        for what, peers in (("sending", columns.send_peer), ("receiving", columns.recv_peer)):
            channels, counts = np.unique(columns.channel[peers != NO_PEER], return_counts=True)
            for channel, count in zip(channels.tolist(), counts.tolist(), strict=True):
                name = f"{what} blocks of channel {channel}"
                found += _above(name, count, limits.blocks_per_direction, rank)
        found += _of_blocks(rank, columns, limits)
    return found


def _of_blocks(rank: int, columns: RankColumns, limits: TargetLimits) -> Iterator[ProgramViolation]:
    """Yield a violation for each limit that a block of `rank` exceeds, block by block."""
    last = limits.waitable_threadblocks - 1
    waits = np.diff(columns.first_wait[columns.first])
    steps, offset = written_steps(columns, limits), np.maximum(columns.src_offset, columns.dst_offset)
    waiting = np.repeat(np.arange(len(columns.op)), columns.waits)
    excessive = np.zeros(len(columns.op), dtype=np.bool_)
    excessive[waiting[columns.wait_block > last]] = True
    excessive |= (columns.count > limits.count) | (offset > limits.offset)
    block_of = columns.block_of_instruction()
    reduces = np.zeros(columns.blocks, dtype=np.bool_)
    if limits.fused_reductions is not None:
        reduces[block_of[columns.op == _REDUCE]] = True
    suspects = (steps > limits.steps) | (waits > limits.waits) | reduces
    suspects[block_of[excessive]] = True
    for block in np.flatnonzero(suspects).tolist():
        yield from _above("steps of a thread block", int(steps[block]), limits.steps, rank, block)
        yield from _above("waits of a thread block", int(waits[block]), limits.waits, rank, block)
        first = int(columns.first[block])
        for item in np.flatnonzero(excessive & (block_of == block)).tolist():
            position = (rank, block, item - first)
            yield from _above("chunks of an instruction", int(columns.count[item]), limits.count, *position)
            yield from _above("chunk offset", int(offset[item]), limits.offset, *position)
            for other in columns.wait_block[columns.first_wait[item] : columns.first_wait[item + 1]].tolist():
                yield from _above("id of a block that is waited on", other, last, *position)
        if reduces[block] and limits.fused_reductions is not None:
            yield from _fused_runs(rank, block, columns, limits.fused_reductions)


_REDUCE = OPS.index(Op.REDUCE)


def _fused_runs(rank: int, block: int, columns: RankColumns, longest: int) -> Iterator[ProgramViolation]:
    """Yield a violation for each run of fusable reductions that is longer than `longest`.

    A run ends before a reduction that waits, and after a reduction for which another block waits.
    """
    begin, end = columns.first[block : block + 2].tolist()
    waited = set(columns.wait_step[columns.wait_block == block].tolist())
    run = 0
    for item in range(begin, end):
        if columns.op[item] != _REDUCE:
            run = 0
            continue
        fuses = (
            run > 0
            and columns.first_wait[item] == columns.first_wait[item + 1]
            and item - 1 - begin not in waited
            and columns.dst_buffer[item] == columns.dst_buffer[item - 1]
            and columns.dst_offset[item] == columns.dst_offset[item - 1]
            and columns.src_buffer[item] == columns.src_buffer[item - 1]
        )
        if fuses and columns.count[item] != columns.count[item - 1]:
            message = "reductions that fuse into one must have equal counts"
            yield ProgramViolation.at("fused reductions", message, rank, block, item - begin)
        run = run + 1 if fuses else 1
        yield from _above("reductions that fuse into one", run, longest, rank, block, item - begin)


def _above(what: str, value: int, largest: int, *position: int) -> Iterator[ProgramViolation]:
    if value > largest:
        yield ProgramViolation.at("limit", f"{what}: {value} is above the limit {largest}", *position)
