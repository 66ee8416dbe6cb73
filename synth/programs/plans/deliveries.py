"""How each message of a program travels in a plan: who moves it, and where it lies in between.

Senders write to their receivers, straight to the destination if nobody there can still need what it holds, else to
scratch of its own. With reads, receivers fetch what stays where it is. Between boxes a port writes, from a copy if
the source is needed for something else before the port surely has read it. Packets always go to scratch.

A message that is put without asking must not hit chunks that its receiver still needs. It does not if everything that
the receiver does to them before the receive also happens before the send, because of earlier messages from the
receiver, on any path. And what a receiver reads, or a port, after the sender has gone on, must not be written before:
every later write at the sender has to happen after the receive. Source: L. Lamport, "Time, Clocks, and the Ordering of
Events" (CACM 1978), with one clock per thread block.
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

from chorale.synth.programs.memory import Layout, layout_of
from chorale.synth.programs.program import BufferRef, Instruction, Op, Program, ThreadBlock

InstructionId = tuple[int, int, int]
"""Rank, block, number of an instruction."""
VectorClock = NDArray[np.signedinteger[Any]]
"""int[blocks of all ranks]: how many instructions of each are known to be done."""
_NONE: Mapping[InstructionId, InstructionId] = MappingProxyType({})


class MessageOrder(NamedTuple):
    """direct:  the receives that store what arrives, and whose chunks nobody can still be using when it is sent
    lasting: the sends whose chunks are not written again before they have been received"""

    direct: frozenset[InstructionId]
    lasting: frozenset[InstructionId]


def message_order(
    program: Program,
    receive_of: Mapping[InstructionId, InstructionId],
    read_late: Mapping[InstructionId, InstructionId] = _NONE,
) -> MessageOrder:
    """Return what holds for the messages of the sound `program`. O(instructions * blocks).

    receive_of: the receive of each send; read_late: the same of those sends whose chunks are read until they have been
    received, instead of when they are sent. Which sends last is found only where receivers read, or ports: there it
    matters, and what every write knew must be kept.
    """
    return _Causality(program, receive_of, read_late).run()


class _Access(NamedTuple):
    """A write at a rank, or what a send reads: who did it, and what he knew."""

    item: InstructionId
    block: int
    clock: VectorClock


class _Causality:
    def __init__(
        self,
        program: Program,
        receive_of: Mapping[InstructionId, InstructionId],
        read_late: Mapping[InstructionId, InstructionId],
    ) -> None:
        self._program, self._receive_of, self._read_late = program, receive_of, read_late
        self._first = [0, *accumulate(len(rank.blocks) for rank in program.ranks)]
        blocks = self._first[-1]
        self._looks_for_lasting = program.plan.reads or bool(program.plan.boxes)
        longest = max((len(block.instructions) for body in program.ranks for block in body.blocks), default=0)
        self._clock: VectorClock = np.zeros((blocks, blocks), dtype=np.int16 if longest < 2**15 else np.int32)
        self._at = [0] * blocks
        self._rank = [rank for rank, body in enumerate(program.ranks) for _ in body.blocks]
        self._layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
        self._done: dict[tuple[int, int], VectorClock] = {}
        self._sent: dict[tuple[int, int, int], deque[tuple[VectorClock, VectorClock]]] = defaultdict(deque)
        self._accesses: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        self._writes: dict[tuple[int, int], list[_Access]] = defaultdict(list)
        self._sends: list[tuple[_Access, range]] = []
        self._direct: set[InstructionId] = set()
        self._waited = {
            (self._first[rank] + wait.block, wait.step)
            for rank, body in enumerate(program.ranks)
            for block in body.blocks
            for item in block.instructions
            for wait in item.waits
        }

    def run(self) -> MessageOrder:
        moved = True
        while moved:
            # A list, so that every block has its turn.
            moved = any([self._advance(block) for block in range(len(self._at))])
        lasting = frozenset(send.item for send, cells in self._sends if self._lasts(send, cells))
        return MessageOrder(frozenset(self._direct), lasting)

    def _advance(self, block: int) -> bool:
        """Go on with `block` as far as possible; return whether it moved."""
        rank = self._rank[block]
        body = self._program.ranks[rank].blocks[block - self._first[rank]]
        begun = self._at[block]
        while self._at[block] < len(body.instructions):
            item = body.instructions[self._at[block]]
            incoming = (body.recv_peer or 0, rank, body.channel)
            if item.op.receives and not self._sent[incoming]:
                break
            waits = [(self._first[rank] + wait.block, wait.step) for wait in item.waits]
            if any(self._at[other] <= step for other, step in waits):
                break
            for wait in waits:
                np.maximum(self._clock[block], self._done[wait], out=self._clock[block])
            self._execute(block, rank, item, incoming, (rank, body.send_peer or 0, body.channel))
        return self._at[block] > begun

    def _execute(
        self, block: int, rank: int, item: Instruction, incoming: tuple[int, int, int], outgoing: tuple[int, int, int]
    ) -> None:
        step, clock = self._at[block], self._clock[block]
        before = clock.copy()
        instruction = (rank, block - self._first[rank], step)
        if item.op.receives:
            put, sent = self._sent[incoming].popleft()
            np.maximum(clock, sent, out=clock)
            if item.op.writes_dst and not item.op.reads_src and self._is_free(rank, item, put):
                self._direct.add(instruction)
            # What is sent on is put after it has arrived.
            before = clock.copy()
        self._note(rank, item, _Access(instruction, block, before))
        self._at[block] = clock[block] = step + 1
        if item.op.sends:
            self._sent[outgoing].append((before, clock.copy()))
        if (block, step) in self._waited:
            self._done[block, step] = clock.copy()

    def _is_free(self, rank: int, item: Instruction, put: VectorClock) -> bool:
        cells = self._cells(rank, item.dst, item.count)
        return all(put[block] > step for cell in cells for block, step in self._accesses[rank, cell])

    def _note(self, rank: int, item: Instruction, access: _Access) -> None:
        """Keep the last write of each cell and the reads since; all before that are before these."""
        read = self._cells(rank, item.src, item.count) if item.op.reads_src else range(0)
        written = self._cells(rank, item.dst, item.count) if item.op.writes_dst else range(0)
        for cell in read:
            self._accesses[rank, cell].append((access.block, access.item[2]))
        for cell in written:
            self._accesses[rank, cell] = [(access.block, access.item[2])]
            if self._looks_for_lasting:
                self._writes[rank, cell].append(access)
        if item.op.sends:
            # What arrived is sent from where it was stored, if it was.
            sent = written or read
            if self._looks_for_lasting:
                self._sends.append((access, sent))
            if access.item in self._read_late:
                for cell in sent:
                    self._accesses[rank, cell].append(self._number(self._read_late[access.item]))

    def _lasts(self, send: _Access, cells: range) -> bool:
        """Return whether all writes of `cells` are part of the send, or before it, or after its receive."""
        reader, step = self._number(self._receive_of[send.item])
        return all(
            write.item == send.item or send.clock[write.block] > write.item[2] or write.clock[reader] > step
            for cell in cells
            for write in self._writes[send.item[0], cell]
        )

    def _number(self, item: InstructionId) -> tuple[int, int]:
        return self._first[item[0]] + item[1], item[2]

    def _cells(self, rank: int, place: BufferRef, count: int) -> range:
        layout: Layout = self._layouts[rank]
        first = layout.cell(place)
        return range(first, first + count)


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
