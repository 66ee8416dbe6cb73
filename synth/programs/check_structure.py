"""Rules of a program that are checked without executing it: buffers, peers, operands, waits, connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import compiled
from chorale.synth.ordering import sorted_order
from chorale.synth.programs.column_rules import RECEIVES, SENDS, RankShape, is_sound
from chorale.synth.programs.columns import NO_PEER, Column, RankColumns, columns_held, ends_of
from chorale.synth.programs.limits import TargetLimits, limit_violations
from chorale.synth.programs.memory import SPLIT_BY_RANK, Layout, declared_chunks, layout_of
from chorale.synth.programs.postconditions import AnyProgram
from chorale.synth.programs.program import BufferRef, Instruction, Program, ProgramViolation, RankProgram, ThreadBlock

Connection = tuple[int, int, int]
"""Sender, receiver, channel."""


def structure_violations(program: Program, limits: TargetLimits | None = None) -> list[ProgramViolation]:
    """Return every broken rule, `limits` of the target included if given. O(instructions)."""
    found = list(_whole_program(program))
    for rank in range(len(program.ranks)):
        found.extend(rank_structure_violations(program, rank))
    beyond = [] if limits is None else limit_violations(program, limits)
    return [*found, *unmatched_connections(*message_counts(program)), *beyond]


def rank_structure_violations(program: Program, rank: int) -> list[ProgramViolation]:
    """Return the rules that `rank` breaks by itself; nothing of other ranks is looked at."""
    rank_program = program.ranks[rank]
    columns = columns_held(rank_program)
    if columns is not None:
        shape = RankShape(rank, len(program.ranks), program.channels, layout_of(program, rank))
        if is_sound(rank_program, columns, shape):
            return list(_buffers(program, rank, rank_program))
    found = [*_buffers(program, rank, rank_program), *_connection_ends(rank, rank_program)]
    for index, block in enumerate(rank_program.blocks):
        found.extend(_block(program, rank, index, block))
    return found


def require_valid_structure(program: Program, limits: TargetLimits, target: str) -> None:
    """Raise InvalidInput with the first broken rule of `program`, if there is one."""
    for violation in structure_violations(program, limits):
        rule = f"a program must fit {target} ({violation.rule})"
        raise InvalidInput(rule, violation.message, "lower it with other parameters")


def collective_violations(program: AnyProgram) -> Iterator[ProgramViolation]:
    """Yield what in chunks and ranks does not fit the collective of `program`, in any form."""
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


def _whole_program(program: Program) -> Iterator[ProgramViolation]:
    yield from collective_violations(program)
    used = 1 + max((channel for rank in program.ranks for channel in _channels(rank)), default=-1)
    if program.channels != max(1, used):
        yield ProgramViolation.at("channels", f"declares {program.channels} channels, but uses {used}")


def _channels(rank_program: RankProgram) -> list[int]:
    columns = columns_held(rank_program)
    return [block.channel for block in rank_program.blocks] if columns is None else list(columns.channel.tolist())


def _buffers(program: Program, rank: int, rank_program: RankProgram) -> Iterator[ProgramViolation]:
    exact = declared_chunks(program.collective, program.chunks, len(program.ranks))
    declared = (rank_program.input_chunks, rank_program.output_chunks)
    # The loader of MSCCL wants whole vectors of a custom collective, that of its executor takes anything.
    also = 0 if program.collective.custom is None else program.chunks
    for name, count, whole in zip(("input", "output"), declared, exact, strict=True):
        if count not in (0, whole, also):
            yield ProgramViolation.at("buffers", f"{name} has {count} chunks, must have 0 (unused) or {whole}", rank)
    if not rank_program.blocks:
        yield ProgramViolation.at("idle rank", "has no thread block; a rank without work needs one without steps", rank)


def _connection_ends(rank: int, rank_program: RankProgram) -> Iterator[ProgramViolation]:
    for verb in ("send", "recv"):
        seen: dict[tuple[int, int], int] = {}
        for index, block in enumerate(rank_program.blocks):
            peer = block.send_peer if verb == "send" else block.recv_peer
            if peer is None:
                continue
            first = seen.setdefault((block.channel, peer), index)
            if first != index:
                message = f"{verb}s with rank {peer} on channel {block.channel}, as block {first} does"
                yield ProgramViolation.at("shared connection", message, rank, index)


def _block(program: Program, rank: int, index: int, block: ThreadBlock) -> Iterator[ProgramViolation]:
    if not 0 <= block.channel < program.channels:
        message = f"channel {block.channel} is not in 0 to {program.channels - 1}"
        yield ProgramViolation.at("channel", message, rank, index)
    for peer in (block.send_peer, block.recv_peer):
        if peer is not None and (peer == rank or not 0 <= peer < len(program.ranks)):
            yield ProgramViolation.at("peer", f"peer {peer} is not another rank", rank, index)
    layout = layout_of(program, rank)
    for step, instruction in enumerate(block.instructions):
        for rule, message in _instruction(program.ranks[rank], block, instruction, layout):
            yield ProgramViolation.at(rule, message, rank, index, step)


def _instruction(
    rank: RankProgram, block: ThreadBlock, instruction: Instruction, layout: Layout
) -> Iterator[tuple[str, str]]:
    op = instruction.op
    if op.sends and block.send_peer is None:
        yield "peer", f"{op.value} needs a block with a rank to send to"
    if op.receives and block.recv_peer is None:
        yield "peer", f"{op.value} needs a block with a rank to receive from"
    if instruction.count < 1:
        yield "count", f"{op.value} moves {instruction.count} chunks, must move at least 1"
    if op.reads_src and _outside(rank, instruction.src, instruction.count):
        yield "operand", f"{op.value} reads {_range(instruction.src, instruction.count)}, outside the buffer"
    if op.writes_dst and _outside(rank, instruction.dst, instruction.count):
        yield "operand", f"{op.value} writes {_range(instruction.dst, instruction.count)}, outside the buffer"
    # The threads of a runtime read and write a stretch in no order.
    distance = abs(layout.cell(instruction.src) - layout.cell(instruction.dst))
    if op.reads_src and op.writes_dst and 0 < distance < instruction.count:
        yield "overlap", f"{op.value} reads chunks that it writes, {distance} further on"
    for wait in instruction.waits:
        if not (0 <= wait.block < len(rank.blocks) and 0 <= wait.step < len(rank.blocks[wait.block].instructions)):
            yield "wait", f"waits for step {wait.step} of block {wait.block}, which does not exist"


def _outside(rank: RankProgram, operand: BufferRef, count: int) -> bool:
    chunks = {"i": rank.input_chunks, "o": rank.output_chunks, "s": rank.scratch_chunks}[operand.buffer]
    return operand.offset < 0 or operand.offset + count > chunks


def _range(operand: BufferRef, count: int) -> str:
    return f"{operand.buffer}[{operand.offset}..{operand.offset + count - 1}]"


Counts = dict[Connection, list[int]]


def message_counts(program: Program) -> tuple[Counts, Counts]:
    """Return the counts of all messages in order, per connection, as sent and as received. O(instructions)."""
    sent: Counts = {}
    received: Counts = {}
    for rank in range(len(program.ranks)):
        for counts, of_rank in zip((sent, received), rank_message_counts(program.ranks[rank], rank), strict=True):
            for connection, some in of_rank:
                counts.setdefault(connection, []).extend(some)
    return sent, received


Ends = list[tuple[Connection, list[int]]]
"""The counts of the messages of each block that has a peer."""


def rank_message_counts(body: RankProgram, rank: int) -> tuple[Ends, Ends]:
    """Return what the blocks of `rank` send and receive."""
    columns = columns_held(body)
    if columns is not None:
        return _column_counts(columns, rank)
    sent, received = [], []
    for block in body.blocks:
        if block.send_peer is not None:
            counts = [item.count for item in block.instructions if item.op.sends]
            sent.append(((rank, block.send_peer, block.channel), counts))
        if block.recv_peer is not None:
            counts = [item.count for item in block.instructions if item.op.receives]
            received.append(((block.recv_peer, rank, block.channel), counts))
    return sent, received


def _column_counts(columns: RankColumns, rank: int) -> tuple[Ends, Ends]:
    ends: tuple[Ends, Ends] = ([], [])
    for found, peers, uses in zip(ends, (columns.send_peer, columns.recv_peer), (SENDS, RECEIVES), strict=True):
        used = uses[columns.op]
        counts = columns.count[used].tolist()
        bounds = ends_of(used)[columns.first].tolist()
        for block, (peer, channel) in enumerate(zip(peers.tolist(), columns.channel.tolist(), strict=True)):
            if peer != NO_PEER:
                connection = (rank, peer, channel) if found is ends[0] else (peer, rank, channel)
                found.append((connection, counts[bounds[block] : bounds[block + 1]]))
    return ends


class OpenConnections:
    """What the ranks of a program that come one after the other send and receive on each connection."""

    def __init__(self, ranks: int, channels: int) -> None:
        self._ranks, self._channels = ranks, channels
        self._ends: tuple[list[RankEnds], list[RankEnds]] = ([], [])  # sent, received

    def ends_of_rank(self, columns: RankColumns, rank: int) -> tuple[RankEnds, RankEnds]:
        """Return what the blocks of a structurally sound rank send, and receive. O(instructions); in any thread."""
        sides = ((columns.send_peer, SENDS), (columns.recv_peer, RECEIVES))
        made = [_messages_of_blocks(columns.first, columns.op, columns.count, peers, uses) for peers, uses in sides]
        ends = []
        for side, ((peers, _), (lengths, counts)) in enumerate(zip(sides, made, strict=True)):
            blocks = np.flatnonzero(peers != NO_PEER)
            pair = rank * self._ranks + peers[blocks] if side == 0 else peers[blocks] * self._ranks + rank
            key = pair * self._channels + columns.channel[blocks]
            ends.append(RankEnds(key, lengths[blocks], counts[: lengths.sum()].copy()))
        return ends[0], ends[1]

    def add(self, sent: RankEnds, received: RankEnds) -> None:
        """Note what `ends_of_rank` returned for the next rank."""
        self._ends[0].append(sent)
        self._ends[1].append(received)

    def violations(self) -> Iterator[ProgramViolation]:
        """Yield the connections whose ends do not agree, when all ranks have come. O(messages)."""
        sent, received = (_joined_ends(ends) for ends in self._ends)
        if len(sent.key) == len(received.key) and _agree(sent, received):
            return
        yield from unmatched_connections(self._counts(sent), self._counts(received))

    def _counts(self, ends: ConnectionEnds) -> Counts:
        bounds = ends.first.tolist()
        return {
            self._name(key): ends.counts[bounds[row] : bounds[row + 1]].tolist()
            for row, key in enumerate(ends.key.tolist())
        }

    def _name(self, key: int) -> Connection:
        pair, channel = divmod(key, self._channels)
        sender, receiver = divmod(pair, self._ranks)
        return sender, receiver, channel


class RankEnds(NamedTuple):
    """Of a rank: the number of each connection, how many messages it carries, and the chunks of all of them in order.
    All messages are on one of the connections."""

    key: Column
    lengths: Column
    counts: NDArray[np.int32]


class ConnectionEnds(NamedTuple):
    """As of ranks, of all together; `first` message of each connection, and the end of the last; `order`: the
    connections by their numbers."""

    key: Column
    first: Column
    counts: NDArray[np.int32]
    order: Column


def _joined_ends(ends: list[RankEnds]) -> ConnectionEnds:
    key, lengths, counts = (np.concatenate(column) for column in zip(*ends, strict=True))
    return ConnectionEnds(key, ends_of(lengths), counts, sorted_order((key,)))


@compiled
def _messages_of_blocks(
    first: Column, op: Column, count: Column, peers: Column, uses: NDArray[np.bool_]
) -> tuple[Column, NDArray[np.int32]]:
    """Return how many instructions of each block with a peer do what `uses` says of their operation, and their chunks,
    block by block, and zeros after them."""
    lengths, counts = np.zeros(len(peers), dtype=np.int64), np.zeros(len(op), dtype=np.int32)
    total = 0
    for block in range(len(peers)):
        begun = total
        if peers[block] >= 0:
            for item in range(first[block], first[block + 1]):
                if uses[op[item]]:
                    counts[total] = count[item]
                    total += 1
        lengths[block] = total - begun
    return lengths, counts


@compiled
def _agree(sent: ConnectionEnds, received: ConnectionEnds) -> bool:
    """Return whether as many connections at both ends are the same ones with the same messages."""
    for number in range(len(sent.order)):
        out, into = sent.order[number], received.order[number]
        length = sent.first[out + 1] - sent.first[out]
        if sent.key[out] != received.key[into] or length != received.first[into + 1] - received.first[into]:
            return False
        for index in range(length):
            if sent.counts[sent.first[out] + index] != received.counts[received.first[into] + index]:
                return False
    return True


def unmatched_connections(sent: Counts, received: Counts) -> Iterator[ProgramViolation]:
    """Return the connections that have one end only, or different counts at their ends."""
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
