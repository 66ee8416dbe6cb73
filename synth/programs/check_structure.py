"""Checks what can be checked without executing a program: buffers, peers, operands, waits, limits of targets.

The MSCCL runtimes choose the number of chunks per message from the vector size. A connection's buffer is divided into
slots, and a message contains as many complete chunks as fit into one slot. Large vectors therefore need more messages,
so a program that is correct for small vectors may deadlock with large ones. Source: the code that chooses the chunks
per message in the kernels of microsoft/msccl and Azure/msccl-executor-nccl.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import SPLIT_BY_RANK, declared_chunks, layout_of
from chorale.synth.programs.program import (
    BUFFERS,
    NO_PEER,
    OPS,
    READS_SRC,
    RECEIVES,
    SENDS,
    WRITES_DST,
    AnyProgram,
    Column,
    Op,
    Program,
    ProgramViolation,
    Protocol,
    RankColumns,
    ends_of,
)

MOST_CHUNKS = 71
"""Maximum number of chunks in one message, and in one step."""
_REDUCE = OPS.index(Op.REDUCE)
Connection = tuple[int, int, int]
"""(sender, receiver, channel)."""
Counts = dict[Connection, list[int]]
"""For each connection, the number of chunks in each of its messages, in order."""
_Mark = tuple[int, int, int, str, str]
"""(block, step or -1 for the block itself, sort key of the rule, rule, message)."""


@dataclass(frozen=True, slots=True)
class MessageBuffer:
    """Default sizes in bytes of a connection's buffer and of the buffer's slots. A message fits into one slot."""

    buffer_bytes: int
    slot_bytes: int

    def chunks_at(self, size_bytes: int, chunks: int) -> int:
        """Return the chunks per message for a vector of `size_bytes` with `chunks` chunks; 1 if `size_bytes` is 0."""
        if size_bytes == 0:
            return 1
        return min(max(self.slot_bytes // -(-size_bytes // chunks), 1), MOST_CHUNKS)

    def largest_size(self, message_chunks: int, chunks: int) -> int | None:
        """Return the maximum vector size in bytes with at least `message_chunks` chunks per message; None: no limit."""
        return None if message_chunks <= 1 else chunks * (self.slot_bytes // message_chunks)


MSCCL_BUFFERS: Mapping[Protocol, MessageBuffer] = {
    "Simple": MessageBuffer(4 * 2**20, 2 * 2**20),
    "LL": MessageBuffer(512 * 2**10, 32 * 2**10),
    "LL128": MessageBuffer(4_915_200, 576_000),
}
"""Default buffers of both MSCCL runtimes. NCCL_BUFFSIZE, NCCL_LL_BUFFSIZE and NCCL_LL128_BUFFSIZE change their
sizes."""


@dataclass(frozen=True, slots=True)
class TargetLimits:
    """Limits and other rules that a target's reader and runtime set for programs. All counts are maximum values.

    ranks:                    ranks in a program
    channels:                 channels in a program
    threadblocks:             thread blocks per rank
    resident_threadblocks:    thread blocks per rank that can run simultaneously; with more, a program may deadlock
    waitable_threadblocks:    thread blocks per rank for which others can wait; these have the lowest ids
    blocks_per_direction:     blocks per rank and channel that send; the same limit applies to blocks that receive
    steps:                    steps per thread block as written, including `nop`
    waits:                    total waits per thread block
    single_wait:              whether a step has at most one wait, so that each further wait needs a `nop`
    count:                    chunks per instruction
    offset:                   largest index of an operand's first chunk
    elements_per_rank:        XML elements that the reader keeps for a rank: the root element, those of all ranks, and
                              those of the rank's own blocks and steps
    elements:                 XML elements in a file
    fused_reductions:         maximum length of a run of local reductions that the runtime may fuse; None: no fusion
    largest_max_bytes:        maximum vector size in bytes that a file may state; None: no limit
    one_sided_operations:     operations per block if the runtime has puts and signals; None if it sends and receives
    alltoall_in_place:        whether an alltoall can be in place
    alignment_bytes:          chunk sizes must be multiples of this number
    message_buffers:          buffers that limit the chunks per message; None if messages can have one chunk at any size
    """

    ranks: int
    channels: int
    threadblocks: int
    resident_threadblocks: int
    waitable_threadblocks: int
    blocks_per_direction: int
    steps: int
    waits: int
    count: int
    offset: int
    elements_per_rank: int
    elements: int
    single_wait: bool = False
    fused_reductions: int | None = None
    largest_max_bytes: int | None = None
    one_sided_operations: int | None = None
    alltoall_in_place: bool = True
    alignment_bytes: int = 1
    message_buffers: Mapping[Protocol, MessageBuffer] | None = None


def written_steps(columns: RankColumns, limits: TargetLimits) -> Column:
    """Return how many steps each block has when written to a file, including `nop` steps for additional waits."""
    if not limits.single_wait:
        return columns.lengths
    return np.diff(np.concatenate([[0], np.cumsum(np.maximum(columns.waits, 1))])[columns.first])


def limit_violations(program: Program, limits: TargetLimits) -> list[ProgramViolation]:
    """Return a violation for every limit that `program` exceeds. O(instructions)."""
    ranks = [body.columns for body in program.ranks]
    elements = [columns.blocks + int(written_steps(columns, limits).sum()) for columns in ranks]
    found = [
        *above("ranks", len(ranks), limits.ranks),
        *above("channels", program.channels, limits.channels),
        *above("elements of the file", 1 + len(ranks) + sum(elements), limits.elements),
    ]
    if limits.largest_max_bytes is not None:
        found += above("bytes of the vector", program.max_bytes, limits.largest_max_bytes)
    for rank, columns in enumerate(ranks):
        found += above("thread blocks of a rank", columns.blocks, limits.threadblocks, rank)
        kept = 1 + len(ranks) + elements[rank]
        found += above("elements kept for one rank", kept, limits.elements_per_rank, rank)
        for what, peers in (("sending", columns.send_peer), ("receiving", columns.recv_peer)):
            channels, counts = np.unique(columns.channel[peers != NO_PEER], return_counts=True)
            for channel, count in zip(channels.tolist(), counts.tolist(), strict=True):
                name = f"{what} blocks of channel {channel}"
                found += above(name, count, limits.blocks_per_direction, rank)
        found += _limits_of_blocks(rank, columns, limits)
    return found


def _limits_of_blocks(rank: int, columns: RankColumns, limits: TargetLimits) -> Iterator[ProgramViolation]:
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
        yield from above("steps of a thread block", int(steps[block]), limits.steps, rank, block)
        yield from above("waits of a thread block", int(waits[block]), limits.waits, rank, block)
        first = int(columns.first[block])
        for item in np.flatnonzero(excessive & (block_of == block)).tolist():
            position = (rank, block, item - first)
            yield from above("chunks of an instruction", int(columns.count[item]), limits.count, *position)
            yield from above("chunk offset", int(offset[item]), limits.offset, *position)
            for other in columns.wait_block[columns.first_wait[item] : columns.first_wait[item + 1]].tolist():
                yield from above("id of a block that is waited on", other, last, *position)
        if reduces[block] and limits.fused_reductions is not None:
            yield from _fused_runs(rank, block, columns, limits.fused_reductions)


def _fused_runs(rank: int, block: int, columns: RankColumns, longest: int) -> Iterator[ProgramViolation]:
    """Yield violations for runs of fusable reductions that are longer than `longest` or have unequal chunk counts.

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
        yield from above("reductions that fuse into one", run, longest, rank, block, item - begin)


def above(what: str, value: int, largest: int, *position: int) -> Iterator[ProgramViolation]:
    if value > largest:
        yield ProgramViolation.at("limit", f"{what}: {value} is above the limit {largest}", *position)


def structure_violations(program: Program, limits: TargetLimits | None = None) -> list[ProgramViolation]:
    """Return a violation for each rule that `program` breaks, and for each exceeded limit in `limits`."""
    found = list(collective_violations(program))
    used = 1 + max(int(rank.columns.channel.max(initial=-1)) for rank in program.ranks)
    if program.channels != max(1, used):
        found.append(ProgramViolation.at("channels", f"declares {program.channels} channels, but uses {used}"))
    exact = declared_chunks(program.collective, program.chunks, len(program.ranks))
    # For a custom collective, the MSCCL loader requires complete vectors; the MSCCL executor accepts any buffer sizes.
    also = 0 if program.collective.custom is None else program.chunks
    for rank, body in enumerate(program.ranks):
        declared = (("input", body.input_chunks, exact[0]), ("output", body.output_chunks, exact[1]))
        for name, count, complete in declared:
            if count not in (0, complete, also):
                message = f"{name} has {count} chunks, must have 0 (unused) or {complete}"
                found.append(ProgramViolation.at("buffers", message, rank))
        if not body.blocks:
            message = "has no thread block; a rank without work needs one without steps"
            found.append(ProgramViolation.at("idle rank", message, rank))
        found += _block_violations(program, rank, body.columns)
    beyond = [] if limits is None else limit_violations(program, limits)
    return [*found, *unmatched_connections(*message_counts(program)), *beyond]


def require_valid_structure(program: Program, limits: TargetLimits, target: str) -> None:
    """Raise InvalidInput if `program` breaks a rule; the message names the first such rule and the `target`."""
    for violation in structure_violations(program, limits):
        rule = f"a program must fit {target} ({violation.rule})"
        raise InvalidInput(rule, violation.message, "lower it with other parameters")


def collective_violations(program: AnyProgram) -> Iterator[ProgramViolation]:
    """Yield a violation if the collective does not allow the chunk count, rank count or root of `program`."""
    ranks = len(program.ranks)
    if program.chunks < 1:
        yield ProgramViolation.at("chunks", f"the vector has {program.chunks} chunks, must have at least 1")
    if program.collective.name in SPLIT_BY_RANK and program.chunks % ranks:
        message = f"{program.chunks} chunks of the vector are not a multiple of {ranks} ranks"
        yield ProgramViolation.at("chunks", message)
    custom = program.collective.custom
    if custom is not None and custom.ranks != ranks:
        yield ProgramViolation.at("ranks", f"the program has {ranks} ranks, its collective {custom.ranks}")
    if custom is not None and program.chunks % custom.chunks:
        message = f"{program.chunks} chunks of the vector are not a multiple of the {custom.chunks} of its collective"
        yield ProgramViolation.at("chunks", message)
    if program.collective.root is not None and program.collective.root >= ranks:
        yield ProgramViolation.at("root", f"root {program.collective.root} is not below {ranks} ranks")


def _block_violations(program: Program, rank: int, columns: RankColumns) -> list[ProgramViolation]:
    """Return the violations in a rank's blocks: first those of shared connections, then those of each block."""
    found = []
    marks: list[_Mark] = []
    for verb, peers in (("send", columns.send_peer), ("recv", columns.recv_peer)):
        seen: dict[tuple[int, int], int] = {}
        for index, (channel, peer) in enumerate(zip(columns.channel.tolist(), peers.tolist(), strict=True)):
            first = index if peer == NO_PEER else seen.setdefault((channel, peer), index)
            if first != index:
                message = f"{verb}s with rank {peer} on channel {channel}, as block {first} does"
                found.append(ProgramViolation.at("shared connection", message, rank, index))
    for block in np.flatnonzero((columns.channel < 0) | (columns.channel >= program.channels)).tolist():
        message = f"channel {columns.channel[block]} is not in 0 to {program.channels - 1}"
        marks.append((block, -1, 0, "channel", message))
    for order, peers in enumerate((columns.send_peer, columns.recv_peer), 1):
        wrong = (peers != NO_PEER) & ((peers == rank) | (peers < 0) | (peers >= len(program.ranks)))
        blocks: list[int] = np.flatnonzero(wrong).tolist()
        marks += [(block, -1, order, "peer", f"peer {peers[block]} is not another rank") for block in blocks]
    marks += _step_marks(program, rank, columns)
    for block, step, _, rule, message in sorted(marks, key=lambda mark: mark[:3]):
        found.append(ProgramViolation.at(rule, message, rank, block, None if step < 0 else step))
    return found


def _step_marks(program: Program, rank: int, columns: RankColumns) -> Iterator[_Mark]:
    body, layout, op, count = program.ranks[rank], layout_of(program, rank), columns.op, columns.count
    block = columns.block_of_instruction()
    step = np.arange(len(op)) - columns.first[block]

    def marks(order: int, rule: str, wrong: NDArray[np.bool_], text: str) -> Iterator[_Mark]:
        for item in np.flatnonzero(wrong).tolist():
            src, dst = int(columns.src_offset[item]), int(columns.dst_offset[item])
            message = text.format(
                op=OPS[op[item]].value,
                count=count[item],
                src=f"{BUFFERS[columns.src_buffer[item]]}[{src}..{src + int(count[item]) - 1}]",
                dst=f"{BUFFERS[columns.dst_buffer[item]]}[{dst}..{dst + int(count[item]) - 1}]",
                distance=distance[item],
            )
            yield int(block[item]), int(step[item]), order, rule, message

    chunks = np.array([body.input_chunks, body.output_chunks, body.scratch_chunks])
    base = np.array([layout.base(buffer) for buffer in BUFFERS])
    src_end, dst_end = chunks[columns.src_buffer] - count, chunks[columns.dst_buffer] - count
    # A block's threads read and write the chunks of an operand in any order.
    distance = np.abs(base[columns.src_buffer] + columns.src_offset - base[columns.dst_buffer] - columns.dst_offset)
    no_send, no_recv = columns.send_peer[block] == NO_PEER, columns.recv_peer[block] == NO_PEER
    yield from marks(0, "peer", SENDS[op] & no_send, "{op} needs a block with a rank to send to")
    yield from marks(1, "peer", RECEIVES[op] & no_recv, "{op} needs a block with a rank to receive from")
    yield from marks(2, "count", count < 1, "{op} moves {count} chunks, must move at least 1")
    outside = READS_SRC[op] & ((columns.src_offset < 0) | (columns.src_offset > src_end))
    yield from marks(3, "operand", outside, "{op} reads {src}, outside the buffer")
    outside = WRITES_DST[op] & ((columns.dst_offset < 0) | (columns.dst_offset > dst_end))
    yield from marks(4, "operand", outside, "{op} writes {dst}, outside the buffer")
    overlaps = READS_SRC[op] & WRITES_DST[op] & (distance > 0) & (distance < count)
    yield from marks(5, "overlap", overlaps, "{op} reads chunks that it writes, {distance} further on")
    other, number = columns.wait_block, columns.wait_step
    exists = (other >= 0) & (other < columns.blocks)
    exists[exists] &= (number[exists] >= 0) & (number[exists] < columns.lengths[other[exists]])
    waiting = np.repeat(np.arange(len(op)), columns.waits)
    for wait in np.flatnonzero(~exists).tolist():
        message = f"waits for step {number[wait]} of block {other[wait]}, which does not exist"
        yield int(block[waiting[wait]]), int(step[waiting[wait]]), 6, "wait", message


def message_counts(program: Program) -> tuple[Counts, Counts]:
    """Return (counts sent, counts received): the chunk count of each message of each connection. O(instructions)."""
    sent: Counts = {}
    received: Counts = {}
    for rank, body in enumerate(program.ranks):
        columns = body.columns
        for counts, peers, uses in ((sent, columns.send_peer, SENDS), (received, columns.recv_peer, RECEIVES)):
            used = uses[columns.op]
            chunks, bounds = columns.count[used].tolist(), ends_of(used)[columns.first].tolist()
            for block, (peer, channel) in enumerate(zip(peers.tolist(), columns.channel.tolist(), strict=True)):
                if peer != NO_PEER:
                    connection = (rank, peer, channel) if counts is sent else (peer, rank, channel)
                    counts.setdefault(connection, []).extend(chunks[bounds[block] : bounds[block + 1]])
    return sent, received


def unmatched_connections(sent: Counts, received: Counts) -> Iterator[ProgramViolation]:
    """Yield a violation for each connection that lacks an end or whose two ends have different chunk counts."""
    for connection in sorted(sent.keys() | received.keys()):
        sender, receiver, channel = connection
        name = f"connection from rank {sender} to rank {receiver} on channel {channel}"
        if connection not in received:
            yield ProgramViolation.at("connection", f"{name} has no block at the receiver")
        elif connection not in sent:
            yield ProgramViolation.at("connection", f"{name} has no block at the sender")
        elif sent[connection] != received[connection]:
            pairs = zip([*sent[connection], None], [*received[connection], None], strict=False)
            position = next((index for index, (out, into) in enumerate(pairs) if out != into), 0)
            yield ProgramViolation.at("connection", f"{name}: counts sent and received differ at message {position}")
