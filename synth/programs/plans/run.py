"""Calls of a plan, one after the other on each rank, and what goes wrong in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.plans.clocks import PlanClocks
from chorale.synth.programs.plans.memory import PlanMemory
from chorale.synth.programs.plans.moves import Move, MoveMaker, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.packets import PacketSlots
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation
from chorale.synth.programs.postconditions import (
    MAX_REPORTED,
    ChunkValues,
    describe,
    result_violations,
    unwritten_values,
)
from chorale.synth.programs.program import ProgramViolation

Data = tuple[NDArray[np.int64], NDArray[np.uint64]]


class PlanRun:
    """`calls` calls of `plan`, whose pipelines have so many `parts`."""

    def __init__(self, plan: ExecutionPlan, parts: int, calls: int) -> None:
        self._plan, self._calls = plan, calls
        self._pieces = pieces_of_a_chunk(plan, parts)
        self._clocks = PlanClocks(plan, calls)
        self._memory = PlanMemory(plan, self._clocks, self._pieces)
        self._packets = PacketSlots(self._clocks, plan.settings.double_scratch)
        self._maker = MoveMaker(plan, self._pieces)
        self._blocks = [(rank, index) for rank, body in enumerate(plan.ranks) for index in range(len(body.blocks))]
        self._steps = [list(unrolled(plan.ranks[rank].blocks[index], parts)) for rank, index in self._blocks]
        self._at = [0] * len(self._blocks)
        self._call = [0] * len(plan.ranks)

    def violations(self) -> list[ProgramViolation]:
        """Return what goes wrong; the first fault ends the run."""
        for rank in range(len(self._plan.ranks)):
            self._begin(rank, 1)
        moved = True
        while moved:
            moved = False
            for number in range(len(self._blocks)):
                before = self._at[number]
                fault = self._advance(number)
                if fault is not None:
                    return [fault]
                moved |= self._at[number] != before
            for rank in range(len(self._plan.ranks)):
                if self._is_over(rank) and self._call[rank] <= self._calls:
                    found = self._end(rank)
                    if found:
                        return found
                    moved = True
        return self._stuck()

    def _begin(self, rank: int, call: int) -> None:
        self._call[rank] = call
        if call > self._calls:
            return
        self._clocks.begin(rank, call)
        self._memory.begin(rank, call)
        for number, (owner, _) in enumerate(self._blocks):
            if owner == rank:
                self._at[number] = 0

    def _is_over(self, rank: int) -> bool:
        return all(
            self._at[number] == len(self._steps[number])
            for number, (owner, _) in enumerate(self._blocks)
            if owner == rank
        )

    def _end(self, rank: int) -> list[ProgramViolation]:
        """End the call of `rank` and begin the next; return what is wrong with its result."""
        for number, (owner, _) in enumerate(self._blocks):
            if owner == rank:
                self._clocks.join(number)
        late = self._memory.late_access(rank)
        if late is not None:
            message = f"its call may end before {self._name(late, -1)} has written to it, or read of it"
            return [ProgramViolation.at("late put", message, rank)]
        found = self._result(rank)
        self._begin(rank, self._call[rank] + 1)
        return found

    def _result(self, rank: int) -> list[ProgramViolation]:
        """Return what is wrong in the memory of `rank` at the end of its call."""
        plan, pieces = self._plan, self._pieces
        layout = plan.layout(rank)
        own = slice(self._memory.first_cell[rank], self._memory.first_cell[rank + 1])
        identity, members = self._memory.values.identity[own], self._memory.values.members[own]
        own_call = identity // self._memory.stride == self._call[rank]
        shown = np.where(identity < 0, identity, np.where(own_call, identity % self._memory.stride, STALE))
        found: list[ProgramViolation] = []
        for piece in range(pieces):
            values = unwritten_values(layout.cells, members.shape[1])
            values.identity[:], values.members[:] = shown[piece::pieces], members[piece::pieces]
            found += rank_result_violations(plan, rank, values)
            if found:
                return found[:MAX_REPORTED]
        return found

    def _advance(self, number: int) -> ProgramViolation | None:
        """Go on with a block as far as it can; return the first fault."""
        rank, index = self._blocks[number]
        block = self._plan.ranks[rank].blocks[index]
        while self._at[number] < len(self._steps[number]) and self._call[rank] <= self._calls:
            step, operation, repeat = self._steps[number][self._at[number]]
            moves = self._maker.moves(rank, block, operation, repeat) if operation.action.moves else []
            if any(
                self._packets.missing(each, self._call[rank]) for move in moves if move.waits for each in move.takes
            ):
                return None
            if not self._clocks.try_advance(number, operation):
                return None
            self._clocks.tick(number)
            for move in moves:
                fault = self._move(number, operation, move)
                if fault is not None:
                    return ProgramViolation.at(fault[0], fault[1], rank, index, step)
            self._at[number] += 1
        return None

    def _move(self, number: int, operation: Operation, move: Move) -> tuple[str, str] | None:
        """Move data; return the rule that it breaks, and how."""
        call = self._call[self._blocks[number][0]]
        doer = self._doer(number, operation, move)
        if any(self._memory.unwritten(each) for each in move.reads):
            return "uninitialised", "reads a chunk that was never written"
        if any(self._packets.missing(each, call) for each in move.takes):
            return "uninitialised", "sends packets on that may not be there yet"
        data: list[Data] = []
        other = self._take(doer, call, move, data)
        if other is None:
            other = self._race(doer, call, move)
        if other is not None:
            return "race", f"touches a chunk that {self._name(other, number)} touches too, and nothing orders the two"
        data = [*(self._memory.held(each) for each in move.reads), *data]
        total = data[0]
        for further in data[1:]:
            wrong = _without_sum(total, further)
            if wrong is not None:
                return "reduction", self._sum(*wrong)
            total = total[0], total[1] | further[1]
        for each in move.writes:
            self._memory.store(each, total)
        for each in move.packets:
            self._packets.put(doer, each, call, total)
        self._signal(number, operation, move)
        return None

    def _doer(self, number: int, operation: Operation, move: Move) -> int:
        """Return who moves the data: the block, or the proxy of a port, which is told by one thread."""
        if move.port is None:
            return number
        if move.takes and move.waits:
            self._clocks.join(number)  # all threads have their packets before the port is told
        channel = self._clocks.channels(number, operation)[move.port]
        self._clocks.push(number, move.port, channel)
        return self._clocks.proxy[self._blocks[number][0], channel]

    def _signal(self, number: int, operation: Operation, move: Move) -> None:
        """Do what comes with a put: a signal, and waiting for the end of the put."""
        if move.port is None or not operation.action.signals:
            return
        self._clocks.signal(number, operation, move.port)
        if operation.action is Action.PUT_SIGNAL_FLUSH:
            channel = self._clocks.channels(number, operation)[move.port]
            proxy = self._clocks.proxy[self._blocks[number][0], channel]
            self._clocks.hear(number, move.port, self._clocks.clock[proxy])

    def _take(self, doer: int, call: int, move: Move, data: list[Data]) -> int | None:
        """Take the packets that `move` waits for into `data`; what they tell holds for all that it does after that."""
        for each in move.takes:
            other = self._packets.racing(doer, each, call, write=False)
            if other is None and not move.waits:
                other = self._packets.unknown_writer(doer, each, call)
            if other is not None:
                return other
            data.append(self._packets.take(doer, each, call))
        return None

    def _race(self, doer: int, call: int, move: Move) -> int | None:
        for each in move.packets:
            other = self._packets.racing(doer, each, call, write=True)
            if other is not None:
                return other
        return self._memory.racing_access(doer, move.reads, move.writes, move.switch)

    def _sum(self, added: Data, to: Data) -> str:
        values = [ChunkValues(identity % self._memory.stride, members) for identity, members in (added, to)]
        return f"adds {describe(values[0], 0, self._plan)} to {describe(values[1], 0, self._plan)}"

    def _name(self, other: int, number: int) -> str:
        if other == number:
            return "it, without a nop between,"
        if other >= self._clocks.begun:
            return f"rank {other - self._clocks.begun} may still need from before the call"
        if other >= len(self._blocks):
            rank, port = next(end for end, proxy in self._clocks.proxy.items() if proxy == other)
            return f"port {port} of rank {rank}"
        rank, index = self._blocks[other]
        return f"block {index} of rank {rank}"

    def _stuck(self) -> list[ProgramViolation]:
        found = []
        for number, (rank, index) in enumerate(self._blocks):
            if self._at[number] < len(self._steps[number]) and self._call[rank] <= self._calls:
                step, operation, _ = self._steps[number][self._at[number]]
                what = f"{operation.action.value} never ends"
                again = f", in call {self._call[rank]}" if self._call[rank] > 1 else ""
                found.append(ProgramViolation.at("deadlock", what + again, rank, index, step))
        return found[:MAX_REPORTED]


STALE = 2**62
"""What a chunk is that comes from an earlier call."""


def rank_result_violations(plan: ExecutionPlan, rank: int, values: ChunkValues) -> list[ProgramViolation]:
    """Return the chunks of `rank` that are not what they must be, `values` being those of its memory."""
    return result_violations(plan, [plan.layout(rank)], [0], values, rank)


def _without_sum(to: Data, added: Data) -> tuple[Data, Data] | None:
    """Return two pieces that have no sum, if there are such."""
    wrong = to[0] != added[0]
    # Without words every chunk has one contribution only, and no sum.
    wrong |= (to[1] & added[1]).any(axis=1) if to[1].shape[1] else True
    if not wrong.any():
        return None
    at = slice(first := int(np.flatnonzero(wrong)[0]), first + 1)
    return (added[0][at], added[1][at]), (to[0][at], to[1][at])
