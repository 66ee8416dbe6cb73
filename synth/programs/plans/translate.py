"""From a program of sends and receives to a plan of one-sided operations.

Every connection becomes a channel, or one for each lane (`chorale.synth.programs.plans.wiring`). Before anything is
put, the receiver signals once that it has begun the call, and so its memory is no longer used by the last call. After
that senders never ask: a message that may not go straight to its destination has its own part of scratch. So no queue
holds anybody back, and a program that ends with bounded queues does so as a plan. Where receivers read, the sender
signals when they may, and they signal once, at their end, that they have; the call does not end before that.

Packets need no signals: calls use the halves of scratch by turns, and who writes a half again has heard, through
packets, of all that read it. Only in rooted collectives nothing leads back to the root, so that receivers signal there.
"""

from __future__ import annotations

from dataclasses import replace

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import declared_chunks, layout_of
from chorale.synth.programs.plans.deliveries import Deliveries, deliveries_of
from chorale.synth.programs.plans.instructions import (
    BlockWriter,
    PacketInstructions,
    PlainInstructions,
    SegmentDraft,
    channels_by_kind,
)
from chorale.synth.programs.plans.plan import (
    MAX_BLOCK_OPERATIONS,
    Action,
    ExecutionPlan,
    Kind,
    Operation,
    PlanBlock,
    PlanSettings,
    RankPlan,
    largest_bytes,
)
from chorale.synth.programs.plans.wiring import (
    BlockGroups,
    Cuts,
    Lane,
    PlanWiring,
    RankSemaphores,
    SegmentId,
    groups_that_fit,
    links_of,
)
from chorale.synth.programs.program import Buffer, Program


class RankAssembly:
    """The plan of `rank`, whose segments are each a thread block, or a group of them.

    Every member of a group does all operations on its share of their chunks, with channels and semaphores of its own.
    """

    def __init__(self, rank: int, semaphores: int, wiring: PlanWiring) -> None:
        self._rank, self._semaphores, self._wiring = rank, semaphores, wiring
        self._remotes: dict[tuple[int, Buffer], Kind] = {}
        self._blocks: list[PlanBlock] = []

    def add(self, draft: SegmentDraft, members: int) -> None:
        """Add a segment, which so many thread blocks share."""
        numbers: dict[Kind, tuple[int, ...]] = {}
        for kind, named in draft.remotes.items():
            for remote in named:
                self._remotes.setdefault(remote, kind)
            order = {remote: number for number, remote in enumerate(self._remotes)}
            numbers[kind] = tuple(order[remote] for remote in named)
        for member in range(members):
            channels = {
                kind: tuple(self._wiring.channel(self._rank, lane, member) for lane in lanes)
                for kind, lanes in draft.lanes.items()
            }
            operations = tuple(_of_member(each, member, members) for each in draft.writer.operations)
            self._blocks.append(
                PlanBlock(channels["memory"], numbers["memory"], operations, channels["port"], numbers["port"])
            )

    def plan(self, inputs: int, outputs: int, scratch: int) -> RankPlan:
        """Return what the rank executes, with so many chunks of input, output and scratch."""
        return RankPlan(
            inputs,
            outputs,
            scratch,
            self._wiring.peers(self._rank, "memory"),
            tuple(self._remotes),
            (0,) * self._semaphores,
            tuple(self._blocks),
            self._wiring.peers(self._rank, "port"),
            (),
            tuple((kind,) for kind in self._remotes.values()),
        )


def _of_member(operation: Operation, member: int, members: int) -> Operation:
    if members == 1:
        return operation
    semaphores = tuple(number + member for number in operation.semaphores)
    part = (member, members) if operation.action.moves else operation.part
    return replace(operation, semaphores=semaphores, part=part)


RESERVED_OPERATIONS = 14
"""Of a segment: those at its beginning and end."""


def plan_of(program: Program) -> ExecutionPlan:
    """Return what `program` does as one-sided operations, by its plan options. O(instructions * blocks).

    InvalidInput for a protocol that there is not, sums that packets cannot make, and sizes beyond what offsets
    can tell.
    """
    for known, plan in _LATEST:
        if known.ranks is program.ranks and replace(known, name=program.name, origin=program.origin) == program:
            _LATEST.clear()
            return replace(plan, name=program.name, origin=program.origin)
    plan = _translated(program)
    _LATEST[:] = [(program, plan)]
    return plan


_LATEST: list[tuple[Program, ExecutionPlan]] = []
"""What was translated last: whether a program fits is asked before it is written, which takes the same plan."""


def _translated(program: Program) -> ExecutionPlan:
    _require_possible(program)
    deliveries = deliveries_of(program)
    packets = program.protocol == "LL"
    bodies = tuple(writer.plan() for writer in _writers(program, deliveries))
    # Packets are twice as long as what they hold, and there are two halves of scratch.
    scratch = max(body.scratch_chunks for body in bodies) * (4 if packets else 1)
    largest = largest_bytes(program.chunks, scratch)
    if program.max_bytes > largest:
        rule = f"a vector of this plan must be at most {largest} bytes, because offsets have 32 bits"
        raise InvalidInput(rule, program.max_bytes, "use a smaller max_bytes, or 0 for as much as the plan can do")
    return ExecutionPlan(
        program.name,
        program.collective,
        program.in_place,
        bodies,
        program.min_bytes,
        program.max_bytes or largest,
        program.origin,
        PlanSettings(packets, double_scratch=packets, threads=program.plan.threads or PlanSettings().threads),
    )


def _require_possible(program: Program) -> None:
    if program.protocol == "LL128":
        rule = "plans of MSCCL++ are written for protocol Simple or LL"
        raise InvalidInput(rule, program.protocol, "use Simple, or LL for small messages")
    if program.protocol == "LL" and (program.plan.reads or program.plan.pipeline_bytes):
        option = "reads" if program.plan.reads else "pipelines"
        raise InvalidInput("packets are written to their readers, all at once", option, "leave it out, or use Simple")


def _writers(program: Program, deliveries: Deliveries) -> list[_RankWriter]:
    """Return a writer for each rank, with groups where they fit. Who is alone beside groups has more operations, so
    that its blocks may have to be cut, which leaves less room for groups."""
    groups = BlockGroups(program.plan.group)
    while True:
        writers = _writers_for(program, deliveries, PlanWiring(program, deliveries, {}, groups))
        cuts = {block: first for writer in writers for block, first in writer.cuts().items()}
        fitting = groups_that_fit(program, deliveries, cuts, groups)
        if fitting == groups:
            cut = PlanWiring(program, deliveries, cuts, groups) if cuts else None
            return writers if cut is None else _writers_for(program, deliveries, cut)
        groups = fitting


def _writers_for(program: Program, deliveries: Deliveries, wiring: PlanWiring) -> list[_RankWriter]:
    return [_RankWriter(program, rank, deliveries, wiring) for rank in range(len(program.ranks))]


class _RankWriter:
    """Writes the plan of one rank."""

    def __init__(self, program: Program, rank: int, deliveries: Deliveries, wiring: PlanWiring) -> None:
        self._program, self._rank = program, rank
        self._blocks = program.ranks[rank].blocks
        self._deliveries, self._wiring = deliveries, wiring
        self._layout = layout_of(program, rank)
        self._links: RankSemaphores = links_of(rank, self._blocks, wiring)
        self._packets = program.protocol == "LL"
        self._writer = (PacketInstructions if self._packets else PlainInstructions)(deliveries, wiring)
        self._drafts: dict[SegmentId, tuple[SegmentDraft, list[int]]] = {}

    def cuts(self) -> Cuts:
        """Return where blocks must be cut to have no more operations than the executor takes."""
        found = {}
        for index, block in enumerate(self._blocks):
            segment = SegmentId(self._rank, index, 0)
            draft, ends = self._draft(segment)
            if _size(draft.writer.operations) > MAX_BLOCK_OPERATIONS:
                found[self._rank, index] = _cut(ends, len(block.instructions))
        return found

    def plan(self) -> RankPlan:
        """Return the plan."""
        inputs, outputs = declared_chunks(self._program.collective, self._program.chunks, len(self._program.ranks))
        assembly = RankAssembly(self._rank, self._links.semaphores, self._wiring)
        for index in range(len(self._blocks)):
            for segment in self._wiring.segments_of(self._rank, index):
                assembly.add(self._draft(segment)[0], self._wiring.groups.members((self._rank, index)))
                del self._drafts[segment]
        return assembly.plan(inputs, outputs, self._deliveries.scratch_chunks[self._rank])

    def _draft(self, segment: SegmentId) -> tuple[SegmentDraft, list[int]]:
        """Return the segment, and how many operations there are after its beginning and after each instruction."""
        if segment not in self._drafts:
            self._drafts[segment] = self._drawn(segment)
        return self._drafts[segment]

    def _drawn(self, segment: SegmentId) -> tuple[SegmentDraft, list[int]]:
        incoming, outgoing = self._wiring.incoming(segment), self._wiring.outgoing(segment)
        lanes: dict[str, list[Lane]] = {"memory": [], "port": []}
        for lane in (*incoming, *outgoing):
            lanes[self._wiring.kind_of(lane)].append(lane)
        draft = SegmentDraft(BlockWriter(self._layout), {"memory": lanes["memory"], "port": lanes["port"]})
        writer = draft.writer
        self._begin(draft, incoming, outgoing)
        if segment in self._links.chained:
            writer.acquire((self._links.chained[segment],))
        ends, counted = [_size(writer.operations)], len(writer.operations)
        for step in self._wiring.steps_of(segment, self._blocks[segment.block]):
            self._instruction(draft, segment.block, step)
            ends.append(ends[-1] + _size(writer.operations[counted:]))
            counted = len(writer.operations)
        following = segment._replace(number=segment.number + 1)
        if following in self._links.chained:
            writer.release((self._links.chained[following],))
        self._end(draft, incoming, outgoing)
        return draft, ends

    def _begin(self, draft: SegmentDraft, incoming: list[Lane], outgoing: list[Lane]) -> None:
        """Tell those who write to this rank that the call has begun, and hear it of those whom it writes to."""
        if self._packets and not self._program.collective.is_rooted:
            return
        heard = [lane for lane in incoming if lane in self._wiring.written]
        asked = [lane for lane in outgoing if lane in self._wiring.written]
        for kind, channels in channels_by_kind(draft, self._wiring, heard).items():
            draft.writer.signal(Action.SIGNAL, channels, kind)
        for kind, channels in channels_by_kind(draft, self._wiring, asked).items():
            draft.writer.wait(Action.WAIT, channels, kind)

    def _end(self, draft: SegmentDraft, incoming: list[Lane], outgoing: list[Lane]) -> None:
        """Tell those who were read that it is over, and hear it."""
        done = [lane for lane in incoming if lane in self._wiring.read]
        awaited = [lane for lane in outgoing if lane in self._wiring.read]
        for kind, channels in channels_by_kind(draft, self._wiring, done).items():
            draft.writer.signal(Action.SIGNAL, channels, kind)
        for kind, channels in channels_by_kind(draft, self._wiring, awaited).items():
            draft.writer.wait(Action.WAIT, channels, kind)

    def _instruction(self, draft: SegmentDraft, index: int, step: int) -> None:
        part_bytes = self._program.plan.pipeline_bytes
        if not part_bytes:
            self._once(draft, index, step)
            return
        with draft.writer.repeated(part_bytes, self._blocks[index].instructions[step].count):
            self._once(draft, index, step)

    def _once(self, draft: SegmentDraft, index: int, step: int) -> None:
        item, identity = self._blocks[index].instructions[step], (self._rank, index, step)
        draft.writer.acquire(self._links.acquired.get((index, step), ()))
        self._writer.receive(draft, identity, item)
        if item.op.sends:
            self._writer.send(draft, identity, item)
        draft.writer.release(self._links.released.get((index, step), ()))


def _size(operations: list[Operation]) -> int:
    return sum(1 + len(operation.body) for operation in operations)


def _cut(ends: list[int], instructions: int) -> list[int]:
    """Return the first instruction of each segment, each as long as can be. `ends`: see `_RankWriter._draft`."""
    room = MAX_BLOCK_OPERATIONS - RESERVED_OPERATIONS
    cuts, begun = [0], ends[0]
    for step in range(instructions):
        if ends[step + 1] - begun > room and step > cuts[-1]:
            cuts.append(step)
            begun = ends[step]
    return cuts
