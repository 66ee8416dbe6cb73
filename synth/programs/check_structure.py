"""Checks the rules that can be checked without executing the program: buffers, peers, operands, waits, connections."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.limits import TargetLimits, limit_violations
from chorale.synth.programs.memory import SPLIT_BY_RANK, declared_chunks, layout_of
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import (
    BUFFERS,
    NO_PEER,
    OPS,
    READS_SRC,
    RECEIVES,
    SENDS,
    WRITES_DST,
    Program,
    ProgramViolation,
    RankColumns,
    ends_of,
)

Connection = tuple[int, int, int]
"""(sender, receiver, channel)."""
Counts = dict[Connection, list[int]]
"""The chunk counts of the messages on each connection, in order."""


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
    """Raise InvalidInput if `program` breaks a rule."""
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


_Mark = tuple[int, int, int, str, str]
"""(block, step or -1 for the block itself, sort key of the rule, rule, message)."""


def _block_violations(program: Program, rank: int, columns: RankColumns) -> list[ProgramViolation]:
    """Return the violations in a rank's blocks: connections that two blocks share, then all others in block order."""
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
    """Return the chunk counts of the messages on each connection, in order: (as sent, as received). O(instructions)."""
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
    """Yield a violation for each connection that has only one end, or different messages at its two ends."""
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
