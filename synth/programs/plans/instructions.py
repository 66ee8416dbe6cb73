"""Writes single instructions of a program as operations of a segment: plain data with signals, or packets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.plans.block_writer import BlockWriter
from chorale.synth.programs.plans.causality import InstructionId
from chorale.synth.programs.plans.deliveries import Carrier, Deliveries, Delivery
from chorale.synth.programs.plans.plan import Action, Kind, Operand
from chorale.synth.programs.plans.wiring import Lane, PlanWiring
from chorale.synth.programs.program import Buffer, BufferRef, Instruction, Op


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


class InstructionWriter(Protocol):
    """Writes the instructions of a rank."""

    def receive(self, draft: SegmentDraft, identity: InstructionId, item: Instruction) -> None:
        """Write what `item` does with what it receives, and local work."""
        ...

    def send(self, draft: SegmentDraft, identity: InstructionId, item: Instruction) -> None:
        """Write what `item` does to send."""
        ...


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


def writer_for(packets: bool, deliveries: Deliveries, wiring: PlanWiring) -> InstructionWriter:
    """Return who writes the instructions of a plan."""
    return PacketInstructions(deliveries, wiring) if packets else PlainInstructions(deliveries, wiring)


def channels_by_kind(draft: SegmentDraft, wiring: PlanWiring, lanes: Sequence[Lane]) -> dict[Kind, list[int]]:
    """Return the numbers of `lanes` within a segment, by kind, of those kinds that there are."""
    found: dict[Kind, list[int]] = {}
    for lane in lanes:
        kind = wiring.kind_of(lane)
        found.setdefault(kind, []).append(draft.channel(lane, kind))
    return found
