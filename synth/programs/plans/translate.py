"""Translates a program of sends and receives into a plan of one-sided operations.

Every connection becomes a channel, or one channel per lane (see `chorale.synth.programs.plans.wiring`). At the
beginning of a call, each receiver signals once that it has begun the call, which means that the previous call no longer
uses its memory. After that, senders never have to wait before they write, because every message that cannot go directly
to its destination has its own part of scratch. Senders never wait for a queue, so a program that does not deadlock with
bounded queues does not deadlock as a plan either. If receivers read the data from senders, each sender signals when
reading may begin. At the end of the call, the receivers signal that they have finished reading, and the sender waits
for this before its call ends.

Packets need no signals. Calls alternate between the two halves of scratch. Before a rank overwrites a half, the packets
that it has received show that all reads of this half are over. In rooted collectives, no packet travels back to the
root, so receivers signal at the beginning instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout, declared_chunks, layout_of
from chorale.synth.programs.plans.plan import (
    MAX_BLOCK_OPERATIONS,
    MAX_OPERATION_CHANNELS,
    MAX_OPERATION_SEMAPHORES,
    Action,
    ExecutionPlan,
    Kind,
    Operand,
    Operation,
    PlanBlock,
    PlanSettings,
    RankPlan,
    bounded_bytes,
)
from chorale.synth.programs.plans.wiring import (
    Carrier,
    Cuts,
    Deliveries,
    Lane,
    PlanWiring,
    SegmentId,
    deliveries_of,
    links_of,
)
from chorale.synth.programs.program import Buffer, BufferRef, Instruction, Op, Position, Program

RESERVED_OPERATIONS = 14
"""Number of operations reserved for the beginning and end of a segment."""
_LATEST: list[tuple[Program, ExecutionPlan]] = []
"""Caches the latest translation, because lowering needs the plan twice: to check the limits and to write it."""


def plan_of(program: Program) -> ExecutionPlan:
    """Translate `program` into a plan of one-sided operations, according to its plan options.

    O(instructions * blocks).

    Raises:
        InvalidInput: Plans do not support the protocol or its combination with an option, packets would have to be
            added in scratch, or the largest vector needs offsets of more than 32 bits.
    """
    for known, plan in _LATEST:
        if known.ranks is program.ranks and replace(known, name=program.name, origin=program.origin) == program:
            _LATEST.clear()
            return replace(plan, name=program.name, origin=program.origin)
    if program.protocol == "LL128":
        rule = "plans of MSCCL++ have the protocol Simple or LL, not {}"
        raise InvalidInput(rule, program.protocol, "use Simple, or LL for small messages")
    uses_packets = program.protocol == "LL"
    if uses_packets and (program.plan.reads or program.plan.pipeline_bytes):
        option = "reads" if program.plan.reads else "pipelines"
        raise InvalidInput("plans with packets have no option {}", option, "leave it out, or use Simple")
    deliveries = deliveries_of(program)

    def translated(cuts: Cuts) -> list[_RankTranslation]:
        wiring = PlanWiring(program, deliveries, cuts)
        return [_RankTranslation(program, rank, deliveries, wiring) for rank in range(len(program.ranks))]

    ranks = translated({})
    cuts = {block: first for rank in ranks for block, first in rank.cuts().items()}
    bodies = tuple(rank.plan() for rank in (translated(cuts) if cuts else ranks))
    # A packet is twice as long as its data, and scratch has two halves.
    scratch = max(body.scratch_chunks for body in bodies) * (4 if uses_packets else 1)
    sizes = program.min_bytes, bounded_bytes(program.max_bytes, program.chunks, scratch)
    threads, vector_bytes = program.plan.threads or 1024, program.plan.vector_bytes
    settings = PlanSettings(uses_packets, uses_packets, threads=threads, vector_bytes=vector_bytes)
    plan = ExecutionPlan(program.name, program.collective, program.in_place, bodies, *sizes, program.origin, settings)
    _LATEST[:] = [(program, plan)]
    return plan


class _Segment:
    """Collects the operations of a segment (a part of a block), and numbers the lanes and remote buffers that they use.

    Inserts a `nop` between a wait and a data movement, between a data movement and a signal, and between movements of
    overlapping data. Readers wait for every single packet, so packets in scratch need no `nop`.
    """

    def __init__(self, layout: Layout, lanes: dict[Kind, list[Lane]]) -> None:
        self.operations: list[Operation] = []
        self.lanes = lanes
        self.remotes: dict[Kind, list[tuple[int, Buffer]]] = {"memory": [], "port": []}
        self._layout = layout
        self._heard = self._heard_by_several = self._moved = False
        self._read: list[range] = []
        self._written: list[range] = []

    def size(self, first: int = 0) -> int:
        """Return the number of operations from `first` on, including those in pipelines."""
        return sum(1 + len(operation.body) for operation in self.operations[first:])

    def channel(self, lane: Lane, kind: Kind) -> int:
        return self.lanes[kind].index(lane)

    def remote(self, peer: int, at: BufferRef, count: int, kind: Kind) -> Operand:
        known = self.remotes[kind]
        if (peer, at.buffer) not in known:
            known.append((peer, at.buffer))
        return Operand(at.offset, count, remote=known.index((peer, at.buffer)))

    def wait(self, channels: Sequence[int], kind: Kind = "memory") -> None:
        for some in _runs(channels, MAX_OPERATION_CHANNELS):
            self.operations.append(Operation(Action.WAIT, channels=some, kind=kind))
            self._hear(len(some))

    def signal(self, channels: Sequence[int], kind: Kind = "memory") -> None:
        """Add operations that signal on each channel after all earlier data movements, with one thread per channel."""
        for some in _runs(channels, MAX_OPERATION_CHANNELS):
            self._tell(len(some))
            self.operations.append(Operation(Action.SIGNAL, channels=some, kind=kind))

    def acquire(self, semaphores: Sequence[int]) -> None:
        for some in _runs(semaphores, MAX_OPERATION_SEMAPHORES):
            self.operations.append(Operation(Action.ACQUIRE, semaphores=some))
            self._hear(len(some))

    def release(self, semaphores: Sequence[int]) -> None:
        """Add operations that release each semaphore, by one thread each, after all earlier data movements."""
        for some in _runs(semaphores, MAX_OPERATION_SEMAPHORES):
            self._tell(len(some))
            self.operations.append(Operation(Action.RELEASE, semaphores=some))

    def move(self, action: Action, sources: Sequence[Operand], *targets: Operand) -> None:
        """Add an operation in which all threads move or reduce data, after all earlier waits have ended."""
        read, written = (
            [
                range(first, first + each.count)
                for each in side
                if each.buffer is not None and not (action.packets and each.buffer == "s")
                for first in (self._layout.base(each.buffer) + each.first,)
            ]
            for side in (sources, targets)
        )

        def overlap(some: list[range], others: list[range]) -> bool:
            return any(mine.start < other.stop and other.start < mine.stop for mine in some for other in others)

        if self._heard or overlap([*read, *written], self._written) or overlap(written, self._read):
            self.join()
        self.operations.append(Operation(action, tuple(sources), targets))
        self._moved = True
        self._read += read
        self._written += written

    def push(self, action: Action, source: Operand, target: Operand, port: int) -> None:
        """Add an operation in which a port writes to a peer, after all threads have finished with the source."""
        if self._heard or (self._moved and action is not Action.READ_PUT_PACKETS):
            self.join()
        self.operations.append(Operation(action, (source,), (target,), channels=(port,), kind="port"))
        self._moved |= action is Action.READ_PUT_PACKETS

    @contextmanager
    def repeated(self, part_bytes: int, chunks: int) -> Iterator[None]:
        """Put the operations added in this context into a pipeline over `chunks` chunks, in parts of `part_bytes`."""
        if self._heard or self._moved:
            self.join()
        before, self.operations = self.operations, []
        yield
        body, self.operations = tuple(self.operations), before
        if body:
            self.operations.append(Operation(Action.PIPELINE, pipeline=(part_bytes, chunks), body=body))

    def join(self) -> None:
        self.operations.append(Operation(Action.NOP))
        self._heard = self._heard_by_several = self._moved = False
        self._read, self._written = [], []

    def _hear(self, threads: int) -> None:
        self._heard = True
        self._heard_by_several |= threads > 1

    def _tell(self, threads: int) -> None:
        if self._moved or self._heard_by_several or (self._heard and threads > 1):
            self.join()


def _runs(numbers: Sequence[int], longest: int) -> Iterator[tuple[int, ...]]:
    return (tuple(numbers[first : first + longest]) for first in range(0, len(numbers), longest))


def _local(at: BufferRef, item: Instruction) -> Operand:
    """Return an operand for the chunks of `item` that begin at `at` in the memory of its rank."""
    return Operand(at.offset, item.count, at.buffer)


class _RankTranslation:
    """Translates one rank. Each segment becomes a thread block, or a group of thread blocks.

    Every member of a group executes all operations, on its part of the chunks and with its own channels and semaphores.
    """

    def __init__(self, program: Program, rank: int, deliveries: Deliveries, wiring: PlanWiring) -> None:
        self._program, self._rank = program, rank
        self._blocks = program.ranks[rank].blocks
        self._deliveries, self._wiring = deliveries, wiring
        self._layout = layout_of(program, rank)
        self._links = links_of(rank, self._blocks, wiring)
        self._uses_packets = program.protocol == "LL"
        self._written: dict[SegmentId, tuple[_Segment, list[int]]] = {}

    def cuts(self) -> Cuts:
        """Decide where to cut blocks that have too many operations for the executor.

        Returns the first instruction of each segment of these blocks.
        """
        found = {}
        for index, block in enumerate(self._blocks):
            segment, ends = self._segment(SegmentId(self._rank, index, 0))
            if segment.size() > MAX_BLOCK_OPERATIONS:
                cuts, begun = [0], ends[0]  # each segment is as long as possible
                for step in range(len(block.instructions)):
                    if ends[step + 1] - begun > MAX_BLOCK_OPERATIONS - RESERVED_OPERATIONS and step > cuts[-1]:
                        cuts.append(step)
                        begun = ends[step]
                found[self._rank, index] = cuts
        return found

    def plan(self) -> RankPlan:
        remotes: dict[tuple[int, Buffer], Kind] = {}
        blocks = []
        for index in range(len(self._blocks)):
            for identity in self._wiring.segments_of(self._rank, index):
                segment = self._segment(identity)[0]
                del self._written[identity]
                numbers: dict[Kind, tuple[int, ...]] = {}
                for kind, named in segment.remotes.items():
                    for remote in named:
                        remotes.setdefault(remote, kind)
                    order = {remote: number for number, remote in enumerate(remotes)}
                    numbers[kind] = tuple(order[remote] for remote in named)
                for member in range(self._wiring.group):
                    channels = {
                        kind: tuple(self._wiring.channel(self._rank, lane, member) for lane in lanes)
                        for kind, lanes in segment.lanes.items()
                    }
                    operations = tuple(segment.operations)
                    if self._wiring.group > 1:
                        operations = tuple(
                            replace(
                                each,
                                semaphores=tuple(number + member for number in each.semaphores),
                                part=(member, self._wiring.group) if each.action.moves else each.part,
                            )
                            for each in operations
                        )
                    ports = channels["port"], numbers["port"]
                    blocks.append(PlanBlock(channels["memory"], numbers["memory"], operations, *ports))
        return RankPlan(
            *declared_chunks(self._program.collective, self._program.chunks, len(self._program.ranks)),
            self._deliveries.scratch_chunks[self._rank],
            self._wiring.peers(self._rank, "memory"),
            tuple(remotes),
            (0,) * self._links.semaphores,
            tuple(blocks),
            self._wiring.peers(self._rank, "port"),
            (),
            tuple((kind,) for kind in remotes.values()),
        )

    def _segment(self, identity: SegmentId) -> tuple[_Segment, list[int]]:
        """Translate a segment. Return (segment, operation counts before its first instruction and after each one)."""
        if identity in self._written:
            return self._written[identity]
        wiring, links = self._wiring, self._links
        incoming, outgoing = list(wiring.incoming[identity]), list(wiring.outgoing[identity])
        lanes: dict[Kind, list[Lane]] = {"memory": [], "port": []}
        for lane in (*incoming, *outgoing):
            lanes[wiring.kind_of(lane)].append(lane)
        segment = _Segment(self._layout, lanes)
        if not self._uses_packets or self._program.collective.is_rooted:
            # Receivers signal to their senders that the call has begun.
            self._meet(segment, incoming, outgoing, wiring.written)
        if identity in links.chained:
            segment.acquire((links.chained[identity],))
        ends, counted = [segment.size()], len(segment.operations)
        for step in wiring.steps_of(identity, self._blocks[identity.block]):
            part_bytes = self._program.plan.pipeline_bytes
            if part_bytes:
                with segment.repeated(part_bytes, self._blocks[identity.block].instructions[step].count):
                    self._instruction(segment, (self._rank, identity.block, step))
            else:
                self._instruction(segment, (self._rank, identity.block, step))
            ends.append(ends[-1] + segment.size(counted))
            counted = len(segment.operations)
        following = identity._replace(number=identity.number + 1)
        if following in links.chained:
            segment.release((links.chained[following],))
        # Receivers signal to their senders that they have finished reading.
        self._meet(segment, incoming, outgoing, wiring.read)
        self._written[identity] = segment, ends
        return segment, ends

    def _meet(self, segment: _Segment, incoming: list[Lane], outgoing: list[Lane], some: set[Lane]) -> None:
        """Add operations that signal on each incoming lane in `some`, then wait on each outgoing lane in `some`."""
        for lanes, act in ((incoming, segment.signal), (outgoing, segment.wait)):
            by_kind: dict[Kind, list[int]] = {}
            for lane in lanes:
                if lane in some:
                    kind = self._wiring.kind_of(lane)
                    by_kind.setdefault(kind, []).append(segment.channel(lane, kind))
            for kind, channels in by_kind.items():
                act(channels, kind)

    def _instruction(self, segment: _Segment, at: Position) -> None:
        _, index, step = at
        item = self._blocks[index].instructions[step]
        segment.acquire(self._links.acquired.get((index, step), ()))
        if self._uses_packets:
            self._receive_packets(segment, at, item)
        else:
            self._receive(segment, at, item)
        if item.op.sends:
            (self._send_packets if self._uses_packets else self._send)(segment, at, item)
        segment.release(self._links.released.get((index, step), ()))

    def _receive(self, segment: _Segment, at: Position, item: Instruction) -> None:
        """Add operations that do a local step, or that wait for a signal and then store, add or read the message."""
        if item.op is Op.COPY:
            segment.move(Action.COPY, (_local(item.src, item),), _local(item.dst, item))
        if item.op is Op.REDUCE:
            segment.move(Action.REDUCE, (_local(item.dst, item), _local(item.src, item)), _local(item.dst, item))
        if not item.op.receives:
            return
        delivery = self._deliveries.of_receive[at]
        lane = self._wiring.lane_of(delivery)
        kind = self._wiring.kind_of(lane)
        segment.wait((segment.channel(lane, kind),), kind)
        own, arrived = _local(item.src, item), _local(delivery.arrives, item)
        if delivery.carrier is Carrier.RECEIVER:
            there = segment.remote(delivery.send[0], delivery.source, item.count, "memory")
            action, sources = (Action.READ_REDUCE, (own, there)) if item.op.reads_src else (Action.GET, (there,))
            segment.move(action, sources, _local(item.dst, item))
        elif item.op is Op.RECV_REDUCE_SEND:
            segment.move(Action.REDUCE, (arrived, own), arrived)
        elif item.op.reads_src:
            segment.move(Action.REDUCE, (own, arrived), _local(item.dst, item))
        elif delivery.arrives != item.dst:
            segment.move(Action.COPY, (arrived,), _local(item.dst, item))

    def _send(self, segment: _Segment, at: Position, item: Instruction) -> None:
        """Add operations that send the message: put and signal, let a port do both, or signal that data can be read."""
        delivery = self._deliveries.of_send[at]
        lane = self._wiring.lane_of(delivery)
        kind = self._wiring.kind_of(lane)
        channel, source = segment.channel(lane, kind), _local(delivery.source, item)
        if delivery.carrier is Carrier.RECEIVER:
            segment.signal((channel,))
            return
        target = segment.remote(delivery.receive[0], delivery.arrives, item.count, kind)
        if delivery.carrier is Carrier.SENDER:
            segment.move(Action.PUT, (source,), target)
            segment.signal((channel,))
            return
        if delivery.staging is not None:
            segment.move(Action.COPY, (source,), _local(delivery.staging, item))
            source = _local(delivery.staging, item)
        segment.push(Action.PUT_SIGNAL, source, target, channel)

    def _receive_packets(self, segment: _Segment, at: Position, item: Instruction) -> None:
        """Add operations that store or add the packets of `item`.

        Packets that are only forwarded stay in scratch. Also handles local steps.
        """
        if item.op is Op.COPY:
            _require_plain("the target of a copy", item.dst)
            action = Action.UNPACK_PACKETS if item.src.buffer == "s" else Action.COPY
            segment.move(action, (_local(item.src, item),), _local(item.dst, item))
        if item.op is Op.REDUCE:
            _require_plain("the operands of a sum", item.src, item.dst)
            segment.move(Action.REDUCE, (_local(item.dst, item), _local(item.src, item)), _local(item.dst, item))
        if not item.op.receives:
            return
        arrived = _local(self._deliveries.of_receive[at].arrives, item)
        if not item.op.reads_src:
            if item.dst.buffer != "s":
                segment.move(Action.UNPACK_PACKETS, (arrived,), _local(item.dst, item))
            return
        target = item.src if item.op is Op.RECV_REDUCE_SEND else item.dst
        _require_plain("a sum and what is added", item.src, target)
        if not self._adds_and_sends(at, item):
            segment.move(Action.REDUCE_PACKETS, (_local(item.src, item), arrived), _local(target, item))

    def _send_packets(self, segment: _Segment, at: Position, item: Instruction) -> None:
        """Add an operation that sends packets: plain data, a sum that it computes, or packets that have arrived."""
        delivery = self._deliveries.of_send[at]
        lane = self._wiring.lane_of(delivery)
        kind = self._wiring.kind_of(lane)
        target = segment.remote(delivery.receive[0], delivery.arrives, item.count, kind)
        source = delivery.source
        if self._adds_and_sends(at, item):
            arrived = _local(self._deliveries.of_receive[at].arrives, item)
            stored = _local(item.src if item.op is Op.RECV_REDUCE_SEND else item.dst, item)
            segment.move(Action.REDUCE_SEND_PACKETS, (_local(item.src, item), arrived), stored, target)
        elif kind == "memory":
            action = Action.READ_PUT_PACKETS if source.buffer == "s" else Action.PUT_PACKETS
            segment.move(action, (_local(source, item),), target)
        else:
            if delivery.staging is not None:
                segment.move(Action.COPY_PACKETS, (_local(source, item),), _local(delivery.staging, item))
                source = delivery.staging
            segment.push(Action.READ_PUT_PACKETS, _local(source, item), target, segment.channel(lane, kind))

    def _adds_and_sends(self, at: Position, item: Instruction) -> bool:
        """Return whether `item` adds and sends in a single operation, which is possible unless a port sends."""
        is_sum = item.op.receives and item.op.sends and item.op.reads_src
        return is_sum and self._deliveries.of_send[at].carrier is Carrier.SENDER


def _require_plain(what: str, *places: BufferRef) -> None:
    if any(place.buffer == "s" for place in places):
        rule = f"with packets {what} must be in input or output, because scratch holds packets"
        raise InvalidInput(rule, "scratch", "use protocol Simple, or lower it in place for all ranks")
