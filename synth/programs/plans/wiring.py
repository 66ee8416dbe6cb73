"""Decides how a plan moves a program's messages, and divides the work among thread blocks and channels.

Normally the sender writes to its receiver: directly to the destination if no rank can still need the data stored there,
otherwise to scratch memory that only this message uses. If `reads` is set, the receiver instead reads the data from the
sender. Between boxes, a port writes the data, or a copy if the source may change before the port has read it.
Packets always go to scratch.

The sender writes without waiting for the receiver, so it must not overwrite chunks that are needed. A write is safe if
all the receiver's accesses to these chunks before its receive also happen before the send, which earlier messages on
any path can ensure. Conversely, a receiver or a port may read chunks after the sender has continued, so each later
write to these chunks at the sender must happen after the receive. Source: L. Lamport, "Time, Clocks, and the Ordering
of Events" (CACM 1978), with one clock per thread block.

Blocks with too many operations are split, and a group of blocks may share the work of one block. A segment is a run of
consecutive instructions of a program block. Each segment becomes one thread block, or a group. A lane consists of all
messages of a connection from one segment of the sender to one segment of the receiver. Each lane becomes a separate
channel, because only one block may signal on a channel and only one block may wait there. Each member of a group
executes all operations, but only on its part of the chunks.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.plans.plan import Kind
from chorale.synth.programs.program import BufferRef, Instruction, Op, Position, Program, ThreadBlock
from chorale.synth.programs.rounds import Connection, Order, ends_of_block, execution_order

VectorClock = NDArray[np.signedinteger[Any]]
"""int[blocks of all ranks]: for each block, how many of its instructions are known to be done."""
Cuts = Mapping[tuple[int, int], Sequence[int]]
"""For each (rank, program block) that is cut into segments, the index of the first instruction of each segment."""


class MessageOrder(NamedTuple):
    """Says which messages can be sent without an intermediate copy.

    direct:  receives that only store the message, in chunks that no block can still be using when the message is sent
    lasting: sends of chunks that are not overwritten before the message has been received
    """

    direct: frozenset[Position]
    lasting: frozenset[Position]


class _Access(NamedTuple):
    """A write to memory, or a read by a send instruction. `clock` is the clock of `block` before the access."""

    item: Position
    block: int
    clock: VectorClock


def message_order(
    program: Program,
    executed: Order,
    receive_of: Mapping[Position, Position],
    read_late: Mapping[Position, Position] = MappingProxyType({}),
) -> MessageOrder:
    """Find the messages of `program` that can be sent without an intermediate copy. O(instructions * blocks).

    The field `lasting` of the result matters only if receivers or ports read data. Otherwise it stays empty, so that
    the clocks of writes need not be stored.

    Args:
        program: A program without faults.
        executed: The program's instructions in a valid order.
        receive_of: The receive that matches each send.
        read_late: The matching receive of each send whose chunks may be read until that receive has ended.
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
    sent: dict[Position, tuple[VectorClock, VectorClock]] = {}
    # By rank and cell: (block, step) of the last write and of later reads. Earlier accesses happen before these.
    accesses: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    writes: dict[tuple[int, int], list[_Access]] = defaultdict(list)
    sends: list[tuple[_Access, range]] = []
    direct: set[Position] = set()
    for position, sender in executed:
        rank, index, step = position
        block = first[rank] + index
        item, clock = program.ranks[rank].blocks[index].instructions[step], clocks[block]
        starts = layouts[rank].cell(item.src), layouts[rank].cell(item.dst)
        read = range(starts[0], starts[0] + item.count) if item.op.reads_src else range(0)
        written = range(starts[1], starts[1] + item.count) if item.op.writes_dst else range(0)
        for wait in item.waits:
            np.maximum(clock, after[rank, wait.block, wait.step], out=clock)
        if sender is not None:
            put, known = sent.pop(sender)
            np.maximum(clock, known, out=clock)
            is_free = all(put[user] > at for cell in written for user, at in accesses[rank, cell])
            if item.op.writes_dst and not item.op.reads_src and is_free:
                direct.add(position)
        before = clock.copy()  # includes the arrival of a message that this instruction forwards
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
            sent[position] = before, clock.copy()
        if position in waited:
            after[position] = clock.copy()

    def lasts(send: _Access, cells: range) -> bool:
        """Return whether no write to `cells` can happen between the send and its receive."""
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
    """Component that moves a message: the sender's threads, the receiver's threads, or one of the sender's ports."""

    SENDER = "put"
    RECEIVER = "get"
    PORT = "port"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Describes how the message from the instruction `send` to the instruction `receive` is delivered.

    arrives: memory at the receiver to which the message is written or, if the receiver reads, where it stores the data
    source:  memory at the sender from which the message is read
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
    """The deliveries of all messages, indexed by send instruction and by receive instruction.

    scratch_chunks: number of scratch chunks of each rank
    """

    of_send: Mapping[Position, Delivery]
    of_receive: Mapping[Position, Delivery]
    scratch_chunks: tuple[int, ...]


def deliveries_of(program: Program) -> Deliveries:
    """Decide what moves each message of `program`, and through which memory, according to the program's plan options.

    O(instructions * blocks).
    """
    executed = execution_order(program)[0]
    pairs = {send: receive for receive, send in executed if send is not None}
    if program.protocol == "LL":
        return _placed(program, pairs, {}, MessageOrder(frozenset(), frozenset()))
    order = message_order(program, executed, pairs)
    carriers = {send: _carrier(program, send, receive, order) for send, receive in pairs.items()}
    late = {
        send: pairs[send]
        for send, carrier in carriers.items()
        if carrier is not Carrier.SENDER and send in order.lasting
    }
    direct = message_order(program, executed, pairs, late).direct if late else order.direct
    return _placed(program, pairs, carriers, MessageOrder(direct, order.lasting))


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
    """Return all messages with their memory locations at the sender and the receiver.

    Args:
        program: A program without faults.
        pairs: The receive that matches each send.
        carriers: The component that moves the message of each send; empty for packets, which ports move between boxes
                  and senders within boxes.
        order: The messages that need no intermediate copy.
    """
    free = [body.scratch_chunks for body in program.ranks]
    uses_packets = program.protocol == "LL"

    def scratch(rank: int, chunks: int) -> BufferRef:
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


class Lane(NamedTuple):
    """The messages of a connection from one segment of the sender to one segment of the receiver."""

    connection: Connection
    sender_segment: int
    receiver_segment: int


class SegmentId(NamedTuple):
    """Identifies a segment: consecutive instructions of a program block, which become a thread block or a group."""

    rank: int
    block: int
    number: int


class PlanWiring:
    """Divides the blocks of `program` into segments at `cuts`, and the program's messages into lanes.

    incoming: for each segment, a dict whose keys are the lanes on which the segment receives
    outgoing: the same for the lanes on which the segment sends
    written: lanes on which the sender, or its port, writes to the receiver
    read:    lanes on which the receiver reads from the sender
    """

    def __init__(self, program: Program, deliveries: Deliveries, cuts: Cuts) -> None:
        self._program, self._cuts, self.group = program, cuts, program.plan.group
        self.incoming: dict[SegmentId, dict[Lane, None]] = defaultdict(dict)
        self.outgoing: dict[SegmentId, dict[Lane, None]] = defaultdict(dict)
        self._first_channel: dict[tuple[int, Kind], dict[Lane, int]] = defaultdict(dict)
        self._peers: dict[tuple[int, Kind], list[int]] = defaultdict(list)
        self.written: set[Lane] = set()
        self.read: set[Lane] = set()
        for delivery in deliveries.of_send.values():
            lane = self.lane_of(delivery)
            (self.read if delivery.carrier is Carrier.RECEIVER else self.written).add(lane)
            self.outgoing[self.segment_of(delivery.send)][lane] = None
        for delivery in sorted(deliveries.of_receive.values(), key=lambda each: each.receive):
            self.incoming[self.segment_of(delivery.receive)][self.lane_of(delivery)] = None
        # Channels are numbered by peer and connection, so that both ranks of a pair number theirs in the same order.
        numbered = [
            (rank, peer, lane.connection[2], lane)
            for lane in {*self.written, *self.read}
            for rank, peer in (lane.connection[:2], lane.connection[1::-1])
        ]
        for rank, peer, _, lane in sorted(numbered):
            peers = self._peers[rank, self.kind_of(lane)]
            self._first_channel[rank, self.kind_of(lane)][lane] = len(peers)
            peers += [peer] * self.group

    def segment_of(self, item: Position) -> SegmentId:
        cuts = self._cuts.get(item[:2])
        return SegmentId(item[0], item[1], 0 if cuts is None else bisect_right(cuts, item[2]) - 1)

    def segments_of(self, rank: int, block: int) -> list[SegmentId]:
        return [SegmentId(rank, block, number) for number in range(len(self._cuts.get((rank, block), (0,))))]

    def steps_of(self, segment: SegmentId, body: ThreadBlock) -> range:
        cuts = [*self._cuts.get((segment.rank, segment.block), (0,)), len(body.instructions)]
        return range(cuts[segment.number], cuts[segment.number + 1])

    def lane_of(self, delivery: Delivery) -> Lane:
        ends = self.segment_of(delivery.send).number, self.segment_of(delivery.receive).number
        return Lane(delivery.connection, *ends)

    def kind_of(self, lane: Lane) -> Kind:
        sender, receiver, _ = lane.connection
        return "port" if self._program.plan.joined_by_port(sender, receiver) else "memory"

    def peers(self, rank: int, kind: Kind) -> tuple[int, ...]:
        """Return the peer of each channel of `rank`. There is one channel per lane and group member."""
        return tuple(self._peers[rank, kind])

    def channel(self, rank: int, lane: Lane, member: int) -> int:
        """Return the channel number of `lane` at `rank` for a group member."""
        return self._first_channel[rank, self.kind_of(lane)][lane] + member


class RankSemaphores(NamedTuple):
    """The semaphores of a rank. The first member of a group uses the numbers given here; others use the next numbers.

    semaphores: number of semaphores
    acquired:   semaphores to acquire before an instruction, indexed by (block, step)
    released:   semaphores to release after an instruction, indexed by (block, step)
    chained:    for each segment except the first of a block, the semaphore that the segment before it releases
    """

    semaphores: int
    acquired: Mapping[tuple[int, int], Sequence[int]]
    released: Mapping[tuple[int, int], Sequence[int]]
    chained: Mapping[SegmentId, int]


def links_of(rank: int, blocks: Sequence[ThreadBlock], wiring: PlanWiring) -> RankSemaphores:
    """Assign semaphores to pairs of segments in which one waits for the other, and to successive segments of a block.

    For groups of blocks, each pair gets one semaphore per member of the group.
    """
    count = 0
    numbers: dict[tuple[SegmentId, SegmentId], int] = {}
    latest: dict[tuple[int, int], int] = {}
    acquired: dict[tuple[int, int], list[int]] = defaultdict(list)
    released: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, block in enumerate(blocks):
        for step, item in enumerate(block.instructions):
            for wait in item.waits:
                # An earlier wait for this or a later step makes this wait redundant.
                if wait.block == index or wait.step <= latest.get((wait.block, index), -1):
                    continue
                latest[wait.block, index] = wait.step
                ends = wiring.segment_of((rank, wait.block, wait.step)), wiring.segment_of((rank, index, step))
                if ends not in numbers:
                    numbers[ends], count = count, count + wiring.group
                released[wait.block, wait.step].append(numbers[ends])
                acquired[index, step].append(numbers[ends])
    chained = {}
    for index in range(len(blocks)):
        for segment in wiring.segments_of(rank, index)[1:]:
            chained[segment], count = count, count + wiring.group
    for found in (*acquired.values(), *released.values()):
        found.sort()
    return RankSemaphores(count, acquired, released, chained)
