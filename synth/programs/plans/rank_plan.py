"""Puts the segments of a rank together: channels, remote buffers and semaphores get their numbers within the rank."""

from __future__ import annotations

from dataclasses import replace

from chorale.synth.programs.plans.instructions import SegmentDraft
from chorale.synth.programs.plans.plan import Kind, Operation, PlanBlock, RankPlan
from chorale.synth.programs.plans.wiring import PlanWiring
from chorale.synth.programs.program import Buffer


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
