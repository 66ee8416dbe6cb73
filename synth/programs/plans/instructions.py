"""Writes instructions of a program as operations of thread blocks: plain data with signals, or packets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.plans.deliveries import Carrier, Deliveries, Delivery, InstructionId
from chorale.synth.programs.plans.plan import (
    MAX_OPERATION_CHANNELS,
    MAX_OPERATION_SEMAPHORES,
    Action,
    Kind,
    Operand,
    Operation,
)
from chorale.synth.programs.plans.wiring import Lane, PlanWiring
from chorale.synth.programs.program import Buffer, BufferRef, Instruction, Op


class BlockWriter:
    """Appends operations; `layout` is the memory of the rank.

    A `nop` comes between a wait and data, between data and a signal, and between data and data that meet in memory.
    Packets are waited for one by one, so that those in scratch need none.
    """

    def __init__(self, layout: Layout) -> None:
        self.operations: list[Operation] = []
        self._layout = layout
        self._heard = self._heard_by_several = False
        self._moved = False
        self._read: list[range] = []
        self._written: list[range] = []

    def wait(self, action: Action, channels: Sequence[int], kind: Kind = "memory") -> None:
        """Wait for a signal on each channel."""
        for some in _runs(channels, MAX_OPERATION_CHANNELS):
            self.operations.append(Operation(action, channels=some, kind=kind))
            self._hear(len(some))

    def signal(self, action: Action, channels: Sequence[int], kind: Kind = "memory") -> None:
        """Signal, after all that was moved; each channel is up to one thread."""
        for some in _runs(channels, MAX_OPERATION_CHANNELS):
            self._tell(len(some))
            self.operations.append(Operation(action, channels=some, kind=kind))

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Wait for each semaphore."""
        for some in _runs(semaphores, MAX_OPERATION_SEMAPHORES):
            self.operations.append(Operation(Action.ACQUIRE, semaphores=some))
            self._hear(len(some))

    def release(self, semaphores: Sequence[int]) -> None:
        """Release semaphores, after all that was moved; each is up to one thread."""
        for some in _runs(semaphores, MAX_OPERATION_SEMAPHORES):
            self._tell(len(some))
            self.operations.append(Operation(Action.RELEASE, semaphores=some))

    def move(self, action: Action, sources: Sequence[Operand], *targets: Operand) -> None:
        """Move or add data with all threads, after what was heard."""
        read = self._cells(sources, action.packets)
        written = self._cells(targets, action.packets)
        meets = any(_meet(mine, other) for mine in (*read, *written) for other in self._written)
        if self._heard or meets or any(_meet(mine, other) for mine in written for other in self._read):
            self.join()
        # A sum takes its operands and its target piece by piece: `put` has as many targets as sources.
        self.operations.append(Operation(action, tuple(sources), targets))
        self._moved = True
        self._read += read
        self._written += written

    def push(self, action: Action, source: Operand, target: Operand, port: int) -> None:
        """Let a port write to a peer. One thread tells it, so that all must be done with what it reads."""
        if self._heard or self._moved:
            self.join()
        self.operations.append(Operation(action, (source,), (target,), channels=(port,), kind="port"))

    def forward(self, packets: Operand, target: Operand, port: int) -> None:
        """Let a port send packets on, once all of them are there."""
        if self._heard:
            self.join()
        action = Action.READ_PUT_PACKETS
        self.operations.append(Operation(action, (packets,), (target,), channels=(port,), kind="port"))
        self._moved = True

    @contextmanager
    def repeated(self, part_bytes: int, chunks: int) -> Iterator[None]:
        """Let what is written inside be repeated for each part of so many chunks."""
        if self._heard or self._moved:
            self.join()
        before, self.operations = self.operations, []
        yield
        body, self.operations = tuple(self.operations), before
        if body:
            self.operations.append(Operation(Action.PIPELINE, pipeline=(part_bytes, chunks), body=body))

    def join(self) -> None:
        """Let all threads of the block wait for each other."""
        self.operations.append(Operation(Action.NOP))
        self._heard = self._heard_by_several = self._moved = False
        self._read, self._written = [], []

    def _hear(self, threads: int) -> None:
        self._heard = True
        self._heard_by_several |= threads > 1

    def _tell(self, threads: int) -> None:
        if self._moved or self._heard_by_several or (self._heard and threads > 1):
            self.join()

    def _cells(self, operands: Sequence[Operand], packets: bool) -> list[range]:
        """Return the cells of plain data of this rank among `operands`."""
        plain = (each for each in operands if each.buffer is not None and not (packets and each.buffer == "s"))
        return [_span(self._layout.base(each.buffer or "s") + each.first, each.count) for each in plain]


def _span(first: int, count: int) -> range:
    return range(first, first + count)


def _meet(first: range, second: range) -> bool:
    return first.start < second.stop and second.start < first.stop


def _runs(numbers: Sequence[int], longest: int) -> Iterator[tuple[int, ...]]:
    return (tuple(numbers[first : first + longest]) for first in range(0, len(numbers), longest))


@dataclass(slots=True)
class SegmentDraft:
    """What a segment does, with the lanes and remote buffers that it numbers, by the kind of their channels."""

    writer: BlockWriter
    lanes: dict[Kind, list[Lane]]
    remotes: dict[Kind, list[tuple[int, Buffer]]] = field(default_factory=lambda: {"memory": [], "port": []})

    def channel(self, lane: Lane, kind: Kind) -> int:
        """Return the number of a lane within the segment."""
        return self.lanes[kind].index(lane)

    def remote(self, peer: int, at: BufferRef, count: int, kind: Kind) -> Operand:
        """Return chunks of another rank as an operand."""
        known = self.remotes[kind]
        if (peer, at.buffer) not in known:
            known.append((peer, at.buffer))
        return Operand(at.offset, count, remote=known.index((peer, at.buffer)))


def local(at: BufferRef, item: Instruction) -> Operand:
    """Return the chunks of `item` in own memory as an operand."""
    return Operand(at.offset, item.count, at.buffer)


@dataclass(frozen=True, slots=True)
class PlainInstructions:
    """Data and signals, protocol Simple."""

    deliveries: Deliveries
    wiring: PlanWiring

    def receive(self, draft: SegmentDraft, identity: InstructionId, item: Instruction) -> None:
        """Wait for a signal, then store or add what has arrived, or read it."""
        if item.op is Op.COPY:
            draft.writer.move(Action.COPY, (local(item.src, item),), local(item.dst, item))
        if item.op is Op.REDUCE:
            draft.writer.move(Action.REDUCE, (local(item.dst, item), local(item.src, item)), local(item.dst, item))
        if not item.op.receives:
            return
        delivery = self.deliveries.of_receive[identity]
        lane = self.wiring.lane_of(delivery)
        kind = self.wiring.kind_of(lane)
        draft.writer.wait(Action.WAIT, (draft.channel(lane, kind),), kind)
        if delivery.carrier is Carrier.RECEIVER:
            self._read(draft, delivery, item)
        else:
            self._store(draft, delivery, item)

    def _read(self, draft: SegmentDraft, delivery: Delivery, item: Instruction) -> None:
        there = draft.remote(delivery.send[0], delivery.source, item.count, "memory")
        if item.op.reads_src:
            draft.writer.move(Action.READ_REDUCE, (local(item.src, item), there), local(item.dst, item))
        else:
            draft.writer.move(Action.GET, (there,), local(item.dst, item))

    def _store(self, draft: SegmentDraft, delivery: Delivery, item: Instruction) -> None:
        arrived = delivery.arrives
        if item.op is Op.RECV_REDUCE_SEND:
            draft.writer.move(Action.REDUCE, (local(arrived, item), local(item.src, item)), local(arrived, item))
        elif item.op.reads_src:
            draft.writer.move(Action.REDUCE, (local(item.src, item), local(arrived, item)), local(item.dst, item))
        elif arrived != item.dst:
            draft.writer.move(Action.COPY, (local(arrived, item),), local(item.dst, item))

    def send(self, draft: SegmentDraft, identity: InstructionId, item: Instruction) -> None:
        """Put and signal; let a port do both; or signal that the receiver may read."""
        delivery = self.deliveries.of_send[identity]
        lane, writer = self.wiring.lane_of(delivery), draft.writer
        kind = self.wiring.kind_of(lane)
        channel, source = draft.channel(lane, kind), local(delivery.source, item)
        if delivery.carrier is Carrier.RECEIVER:
            writer.signal(Action.SIGNAL, (channel,))
            return
        target = draft.remote(delivery.receive[0], delivery.arrives, item.count, kind)
        if delivery.carrier is Carrier.SENDER:
            writer.move(Action.PUT, (source,), target)
            writer.signal(Action.SIGNAL, (channel,))
            return
        if delivery.staging is not None:
            writer.move(Action.COPY, (source,), local(delivery.staging, item))
            source = local(delivery.staging, item)
        writer.push(Action.PUT_SIGNAL, source, target, channel)


@dataclass(frozen=True, slots=True)
class PacketInstructions:
    """Packets, protocol LL. They carry their own flags, so that nobody signals."""

    deliveries: Deliveries
    wiring: PlanWiring

    def receive(self, draft: SegmentDraft, identity: InstructionId, item: Instruction) -> None:
        """Take packets from scratch, and store or add them; what is only passed on stays there."""
        writer = draft.writer
        if item.op is Op.COPY:
            self._copy(draft, item)
        if item.op is Op.REDUCE:
            self._require_plain("the operands of a sum", item.src, item.dst)
            writer.move(Action.REDUCE, (local(item.dst, item), local(item.src, item)), local(item.dst, item))
        if not item.op.receives:
            return
        arrived = local(self.deliveries.of_receive[identity].arrives, item)
        if not item.op.reads_src:
            if item.dst.buffer != "s":
                writer.move(Action.UNPACK_PACKETS, (arrived,), local(item.dst, item))
            return
        target = item.src if item.op is Op.RECV_REDUCE_SEND else item.dst
        self._require_plain("a sum and what is added", item.src, target)
        if not self._sends_on(identity, item):
            writer.move(Action.REDUCE_PACKETS, (local(item.src, item), arrived), local(target, item))

    def send(self, draft: SegmentDraft, identity: InstructionId, item: Instruction) -> None:
        """Write packets to a peer: of plain data, of a sum as it is made, or those that have arrived."""
        delivery = self.deliveries.of_send[identity]
        lane, writer = self.wiring.lane_of(delivery), draft.writer
        kind = self.wiring.kind_of(lane)
        target = draft.remote(delivery.receive[0], delivery.arrives, item.count, kind)
        if self._sends_on(identity, item):
            arrived = local(self.deliveries.of_receive[identity].arrives, item)
            stored = local(item.src if item.op is Op.RECV_REDUCE_SEND else item.dst, item)
            writer.move(Action.REDUCE_SEND_PACKETS, (local(item.src, item), arrived), stored, target)
            return
        source = delivery.source
        if kind == "memory":
            action = Action.READ_PUT_PACKETS if source.buffer == "s" else Action.PUT_PACKETS
            writer.move(action, (local(source, item),), target)
            return
        if delivery.staging is not None:
            writer.move(Action.COPY_PACKETS, (local(source, item),), local(delivery.staging, item))
            source = delivery.staging
        writer.forward(local(source, item), target, draft.channel(lane, kind))

    def _sends_on(self, identity: InstructionId, item: Instruction) -> bool:
        """Whether one operation adds and sends: ports cannot."""
        if not (item.op.receives and item.op.sends and item.op.reads_src):
            return False
        return self.deliveries.of_send[identity].carrier is Carrier.SENDER

    def _copy(self, draft: SegmentDraft, item: Instruction) -> None:
        self._require_plain("the target of a copy", item.dst)
        action = Action.UNPACK_PACKETS if item.src.buffer == "s" else Action.COPY
        draft.writer.move(action, (local(item.src, item),), local(item.dst, item))

    def _require_plain(self, what: str, *places: BufferRef) -> None:
        if any(place.buffer == "s" for place in places):
            rule = f"with packets {what} must be in input or output, because scratch holds packets"
            raise InvalidInput(rule, "scratch", "use protocol Simple, or lower it in place for all ranks")


def channels_by_kind(draft: SegmentDraft, wiring: PlanWiring, lanes: Sequence[Lane]) -> dict[Kind, list[int]]:
    """Return the numbers of `lanes` within a segment, by kind, of those kinds that there are."""
    found: dict[Kind, list[int]] = {}
    for lane in lanes:
        kind = wiring.kind_of(lane)
        found.setdefault(kind, []).append(draft.channel(lane, kind))
    return found
