"""Decides for each message of a program who moves the data in a plan, and where the data are stored on the way.

Normally the sender writes to its receiver: directly to the destination if no rank can still need the data stored there,
otherwise to scratch memory that only this message uses. If `reads` is set, the receiver instead reads the data from the
sender. Between boxes, a port writes the data. It sends a copy if the source may change before the port has read it.
Packets always go to scratch.

The sender does not ask before it writes, so it must not overwrite chunks that the receiver still needs. This is safe if
all the receiver's accesses to these chunks before its receive also happen before the send, which earlier messages on
any path can ensure. Conversely, a receiver or a port may read chunks after the sender has continued, so each later
write to these chunks at the sender must happen after the receive. Source: L. Lamport, "Time, Clocks, and the Ordering
of Events" (CACM 1978), with one clock per thread block.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.plain_execution import Connection, ends_of_block, execution_order
from chorale.synth.programs.program import BufferRef, Instruction, Op, Position, Program, ThreadBlock

VectorClock = NDArray[np.signedinteger[Any]]
"""int[blocks of all ranks]: for each block, how many of its instructions are known to be done."""
_NONE: Mapping[Position, Position] = MappingProxyType({})


class MessageOrder(NamedTuple):
    """The messages that need no intermediate copy.

    direct:  receives that only store the message, in chunks that no block can still be using when the message is sent
    lasting: sends of chunks that are not overwritten before the message has been received
    """

    direct: frozenset[Position]
    lasting: frozenset[Position]


class _Access(NamedTuple):
    """A write or a send's read: the instruction, its block, and the block's clock before the instruction."""

    item: Position
    block: int
    clock: VectorClock


def message_order(
    program: Program, receive_of: Mapping[Position, Position], read_late: Mapping[Position, Position] = _NONE
) -> MessageOrder:
    """Return which messages of the sound `program` need no intermediate copy. O(instructions * blocks).

    `lasting` matters only if receivers or ports read data. Otherwise it is not computed, so that the clocks of writes
    need not be stored.

    Args:
        program: A program without faults.
        receive_of: The receive that matches each send.
        read_late: The matching receives of those sends whose chunks may be read until the receive is done.
    """
    first = [0, *accumulate(len(body.blocks) for body in program.ranks)]
    layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
    looks_for_lasting = program.plan.reads or bool(program.plan.boxes)
    longest = max((len(block.instructions) for body in program.ranks for block in body.blocks), default=0)
    clocks: VectorClock = np.zeros((first[-1], first[-1]), dtype=np.int16 if longest < 2**15 else np.int32)
    waited = {
        (rank, wait.block, wait.step)
        for rank, body in enumerate(program.ranks)
        for block in body.blocks
        for item in block.instructions
        for wait in item.waits
    }
    after: dict[Position, VectorClock] = {}  # clock at the end of each instruction that others wait for
    sent: dict[Connection, deque[tuple[VectorClock, VectorClock]]] = defaultdict(deque)
    # By rank and cell: (block, step) of the last write and of later reads. Earlier accesses happen before these.
    accesses: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    writes: dict[tuple[int, int], list[_Access]] = defaultdict(list)
    sends: list[tuple[_Access, range]] = []
    direct: set[Position] = set()
    for position in execution_order(program)[0]:
        rank, index, step = position
        body, block = program.ranks[rank].blocks[index], first[rank] + index
        item, clock = body.instructions[step], clocks[block]
        incoming, outgoing = ends_of_block(rank, body)
        starts = layouts[rank].cell(item.src), layouts[rank].cell(item.dst)
        read = range(starts[0], starts[0] + item.count) if item.op.reads_src else range(0)
        written = range(starts[1], starts[1] + item.count) if item.op.writes_dst else range(0)
        for wait in item.waits:
            np.maximum(clock, after[rank, wait.block, wait.step], out=clock)
        if item.op.receives:
            put, known = sent[incoming].popleft()
            np.maximum(clock, known, out=clock)
            is_free = all(put[user] > at for cell in written for user, at in accesses[rank, cell])
            if item.op.writes_dst and not item.op.reads_src and is_free:
                direct.add(position)
        before = clock.copy()  # a forwarded message is put after its arrival
        access = _Access(position, block, before)
        for cell in read:
            accesses[rank, cell].append((block, step))
        for cell in written:
            accesses[rank, cell] = [(block, step)]
            if looks_for_lasting:
                writes[rank, cell].append(access)
        clock[block] = step + 1
        if item.op.sends:
            cells = written or read  # a stored message is forwarded from the place where it was stored
            if looks_for_lasting:
                sends.append((access, cells))
            if position in read_late:
                reader = read_late[position]
                for cell in cells:
                    accesses[rank, cell].append((first[reader[0]] + reader[1], reader[2]))
            sent[outgoing].append((before, clock.copy()))
        if position in waited:
            after[position] = clock.copy()

    def lasts(send: _Access, cells: range) -> bool:
        """Return whether each write to `cells` is part of the send, happens before it, or happens after its receive."""
        rank, index, step = receive_of[send.item]
        return all(
            write.item == send.item
            or send.clock[write.block] > write.item[2]
            or write.clock[first[rank] + index] > step
            for cell in cells
            for write in writes[send.item[0], cell]
        )

    return MessageOrder(frozenset(direct), frozenset(send.item for send, cells in sends if lasts(send, cells)))


class Carrier(Enum):
    """Who moves a message: the sender's threads, the receiver's threads, or one of the sender's ports."""

    SENDER = "put"
    RECEIVER = "get"
    PORT = "port"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message from the instruction `send` to the instruction `receive`.

    arrives: place at the receiver to which the message is written; if the receiver reads, where the receiver stores it
    source:  place at the sender from which the message is read
    staging: the sender's scratch that holds a copy for the port; None if the port reads from `source`
    """

    connection: Connection
    send: Position
    receive: Position
    carrier: Carrier
    arrives: BufferRef
    source: BufferRef
    staging: BufferRef | None = None


@dataclass(frozen=True, slots=True)
class Deliveries:
    """All messages, by their send instructions and by their receive instructions.

    scratch_chunks: number of scratch chunks of each rank
    """

    of_send: Mapping[Position, Delivery]
    of_receive: Mapping[Position, Delivery]
    scratch_chunks: tuple[int, ...]


def deliveries_of(program: Program) -> Deliveries:
    """Return how the messages of the sound `program` travel, according to its plan options.

    O(instructions * blocks).
    """
    pairs = _pairs(program)
    if program.protocol == "LL":
        return _placed(program, pairs, {}, MessageOrder(frozenset(), frozenset()))
    order = message_order(program, pairs)
    carriers = {send: _carrier(program, send, receive, order) for send, receive in pairs.items()}
    late = {
        send: pairs[send]
        for send, carrier in carriers.items()
        if carrier is not Carrier.SENDER and send in order.lasting
    }
    direct = message_order(program, pairs, late).direct if late else order.direct
    return _placed(program, pairs, carriers, MessageOrder(direct, order.lasting))


def _pairs(program: Program) -> dict[Position, Position]:
    """Return the receive that matches each send. A connection's k-th receive matches its k-th send."""
    sends: dict[Connection, list[Position]] = defaultdict(list)
    receives: dict[Connection, list[Position]] = defaultdict(list)
    for position, block, item in _instructions(program):
        incoming, outgoing = ends_of_block(position[0], block)
        if item.op.sends:
            sends[outgoing].append(position)
        if item.op.receives:
            receives[incoming].append(position)
    return {
        send: receive
        for connection, items in sends.items()
        for send, receive in zip(items, receives[connection], strict=True)
    }


def _instructions(program: Program) -> Iterator[tuple[Position, ThreadBlock, Instruction]]:
    for rank, body in enumerate(program.ranks):
        for index, block in enumerate(body.blocks):
            for step, item in enumerate(block.instructions):
                yield (rank, index, step), block, item


def _carrier(program: Program, send: Position, receive: Position, order: MessageOrder) -> Carrier:
    if program.plan.joined_by_port(send[0], receive[0]):
        return Carrier.PORT
    if not program.plan.reads or send not in order.lasting:
        return Carrier.SENDER
    sent, taken = (program.ranks[rank].blocks[block].instructions[step] for rank, block, step in (send, receive))
    if sent.op is Op.RECV_REDUCE_SEND or taken.op is Op.RECV_REDUCE_SEND:
        return Carrier.SENDER  # the sum is not stored, so no rank could read it
    # A get needs the same chunk on both sides, because the executor swaps the two offsets.
    source = sent.src if sent.op is Op.SEND else sent.dst
    return Carrier.RECEIVER if taken.op.reads_src or source.offset == taken.dst.offset else Carrier.SENDER


def _placed(
    program: Program, pairs: Mapping[Position, Position], carriers: Mapping[Position, Carrier], order: MessageOrder
) -> Deliveries:
    """Return all messages with their places in memory at the sender and the receiver.

    Args:
        program: A program without faults.
        pairs: The receive that matches each send.
        carriers: Who moves the message of each send. Default: a port between boxes, otherwise the sender.
        order: The messages that need no intermediate copy.
    """
    free = [body.scratch_chunks for body in program.ranks]
    uses_packets = program.protocol == "LL"

    def scratch(rank: int, chunks: int) -> BufferRef:
        """Allocate scratch chunks at `rank` and return their place."""
        free[rank] += chunks
        return BufferRef("s", free[rank] - chunks)

    senders = {receive: send for send, receive in pairs.items()}
    places: dict[Position, BufferRef] = {}
    for receive, _, item in _instructions(program):
        if item.op.receives:
            stores = item.op.writes_dst and not item.op.reads_src
            if uses_packets:
                is_straight = stores and item.dst.buffer == "s"
            else:
                is_straight = receive in order.direct or carriers[senders[receive]] is Carrier.RECEIVER
            places[receive] = item.dst if is_straight else scratch(receive[0], item.count)
    found = []
    for send, block, item in _instructions(program):
        if not item.op.sends:
            continue
        source = item.src if item.op is Op.SEND else item.dst
        if item.op is Op.RECV_REDUCE_SEND:
            # A sum that is not stored is computed where its message arrived; sums of packets are stored in the operand.
            source = item.src if uses_packets else places[send]
        if uses_packets and item.op is Op.RECV_COPY_SEND:
            source = places[send]  # packets are forwarded unchanged
        by_port = program.plan.joined_by_port(send[0], pairs[send][0])
        carrier = carriers.get(send, Carrier.PORT if by_port else Carrier.SENDER)
        stays = source.buffer == "s" and (uses_packets or item.op is Op.RECV_REDUCE_SEND)
        is_copied = carrier is Carrier.PORT and not stays and (uses_packets or send not in order.lasting)
        staging = scratch(send[0], item.count) if is_copied else None
        connection = ends_of_block(send[0], block)[1]
        found.append(Delivery(connection, send, pairs[send], carrier, places[pairs[send]], source, staging))
    return Deliveries({each.send: each for each in found}, {each.receive: each for each in found}, tuple(free))
