"""How each message of a program travels in a plan: who moves it, and where it lies in between.

Senders write to their receivers, straight to the destination if nobody there can still need what it holds, else to
scratch of its own. With reads, receivers fetch what stays where it is. Between boxes a port writes, from a copy if
the source is needed for something else before the port surely has read it. Packets always go to scratch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from chorale.synth.programs.plans.causality import InstructionId, MessageOrder, message_order
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, ThreadBlock

Connection = tuple[int, int, int]
"""Sender, receiver, channel of the program."""


class Carrier(Enum):
    """Who moves a message: the threads of its sender, or of its receiver, or a port of the sender."""

    SENDER = "put"
    RECEIVER = "get"
    PORT = "port"


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message from the instruction `send` to the instruction `receive`.

    arrives: where it is at the receiver, before that does anything with it; where it is stored, if the receiver reads
    source:  where it is read at the sender
    staging: scratch of the sender to which it is copied for the port, None where the port reads the source itself
    """

    connection: Connection
    send: InstructionId
    receive: InstructionId
    carrier: Carrier
    arrives: BufferRef
    source: BufferRef
    staging: BufferRef | None = None


@dataclass(frozen=True, slots=True)
class Deliveries:
    """All messages, by the instructions at both ends; `scratch_chunks` of each rank."""

    of_send: Mapping[InstructionId, Delivery]
    of_receive: Mapping[InstructionId, Delivery]
    scratch_chunks: tuple[int, ...]


def deliveries_of(program: Program) -> Deliveries:
    """Return how the messages of the sound `program` travel, by its plan options. O(instructions * blocks)."""
    pairs = _pairs(program)
    if program.protocol == "LL":
        return _Builder(program, pairs, {}, MessageOrder(frozenset(), frozenset())).build()
    order = message_order(program, pairs)
    carriers = {send: _carrier(program, send, receive, order) for send, receive in pairs.items()}
    late = {
        send: pairs[send]
        for send, carrier in carriers.items()
        if carrier is not Carrier.SENDER and send in order.lasting
    }
    direct = message_order(program, pairs, late).direct if late else order.direct
    return _Builder(program, pairs, carriers, MessageOrder(direct, order.lasting)).build()


def instruction_at(program: Program, item: InstructionId) -> Instruction:
    """Return an instruction by its rank, block and number."""
    rank, block, step = item
    return program.ranks[rank].blocks[block].instructions[step]


def source_of(item: Instruction, arrives: BufferRef | None) -> BufferRef:
    """Return where a sending instruction leaves what it sends; `arrives`: where what it receives is, None for nothing.
    A sum that is not stored is made where its message arrived."""
    if item.op is Op.SEND:
        return item.src
    return arrives if item.op is Op.RECV_REDUCE_SEND and arrives is not None else item.dst


def _pairs(program: Program) -> dict[InstructionId, InstructionId]:
    """Return the receive of each send: the k-th of a connection goes with the k-th."""
    sends: dict[Connection, list[InstructionId]] = defaultdict(list)
    receives: dict[Connection, list[InstructionId]] = defaultdict(list)
    for identity, block, item in _instructions(program):
        rank = identity[0]
        if item.op.sends:
            sends[rank, block.send_peer or 0, block.channel].append(identity)
        if item.op.receives:
            receives[block.recv_peer or 0, rank, block.channel].append(identity)
    return {
        send: receive
        for connection, items in sends.items()
        for send, receive in zip(items, receives[connection], strict=True)
    }


def _instructions(program: Program) -> Iterator[tuple[InstructionId, ThreadBlock, Instruction]]:
    for rank, body in enumerate(program.ranks):
        for index, block in enumerate(body.blocks):
            for step, item in enumerate(block.instructions):
                yield (rank, index, step), block, item


def _carrier(program: Program, send: InstructionId, receive: InstructionId, order: MessageOrder) -> Carrier:
    if program.plan.joined_by_port(send[0], receive[0]):
        return Carrier.PORT
    if not program.plan.reads or send not in order.lasting:
        return Carrier.SENDER
    sent, taken = instruction_at(program, send), instruction_at(program, receive)
    if sent.op is Op.RECV_REDUCE_SEND or taken.op is Op.RECV_REDUCE_SEND:
        return Carrier.SENDER  # a sum that is stored nowhere
    # A get has the same chunk on both sides, because the executor takes the two offsets the other way round.
    adds = taken.op.reads_src
    return Carrier.RECEIVER if adds or source_of(sent, None).offset == taken.dst.offset else Carrier.SENDER


class _Builder:
    """Gives each message its place."""

    def __init__(
        self,
        program: Program,
        pairs: Mapping[InstructionId, InstructionId],
        carriers: Mapping[InstructionId, Carrier],
        order: MessageOrder,
    ) -> None:
        self._program, self._pairs, self._carriers, self._order = program, pairs, carriers, order
        self._free = [body.scratch_chunks for body in program.ranks]
        self._packets = program.protocol == "LL"

    def build(self) -> Deliveries:
        senders = {receive: send for send, receive in self._pairs.items()}
        places: dict[InstructionId, BufferRef] = {}
        for identity, _, item in _instructions(self._program):
            if item.op.receives:
                places[identity] = self._place(identity, item, senders[identity])
        found = [
            self._delivery(identity, block, item, places)
            for identity, block, item in _instructions(self._program)
            if item.op.sends
        ]
        return Deliveries(
            {each.send: each for each in found}, {each.receive: each for each in found}, tuple(self._free)
        )

    def _place(self, receive: InstructionId, item: Instruction, send: InstructionId) -> BufferRef:
        stores = item.op.writes_dst and not item.op.reads_src
        if self._packets:
            straight = stores and item.dst.buffer == "s"
        else:
            straight = receive in self._order.direct or self._carriers[send] is Carrier.RECEIVER
        return item.dst if straight else self._scratch(receive[0], item.count)

    def _delivery(
        self, send: InstructionId, block: ThreadBlock, item: Instruction, places: Mapping[InstructionId, BufferRef]
    ) -> Delivery:
        receive, by_port = self._pairs[send], self._program.plan.joined_by_port(send[0], self._pairs[send][0])
        source = source_of(item, places.get(send))
        carrier = self._carriers.get(send, Carrier.PORT if by_port else Carrier.SENDER)
        if self._packets and item.op is Op.RECV_REDUCE_SEND:
            source = item.src  # sums of packets are stored where they were made
        if self._packets and item.op is Op.RECV_COPY_SEND:
            source = places[send]  # packets are sent on as they are
        stays = source.buffer == "s" and (self._packets or item.op is Op.RECV_REDUCE_SEND)
        copied = carrier is Carrier.PORT and not stays and (self._packets or send not in self._order.lasting)
        staging = self._scratch(send[0], item.count) if copied else None
        connection = (send[0], block.send_peer or 0, block.channel)
        return Delivery(connection, send, receive, carrier, places[receive], source, staging)

    def _scratch(self, rank: int, chunks: int) -> BufferRef:
        """Return chunks of scratch that nothing else uses."""
        first = self._free[rank]
        self._free[rank] += chunks
        return BufferRef("s", first)
