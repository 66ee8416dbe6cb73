"""Executes a plan on sets of contributions, with a search for races between all threads that touch a chunk."""

from __future__ import annotations

from chorale.synth.programs.plans.memory import HappensBefore, PlanMemory
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operation
from chorale.synth.programs.postconditions import MAX_REPORTED, ChunkValues, describe, result_violations
from chorale.synth.programs.program import ProgramViolation

MAX_MOVES = 2**24
MAX_CELLS = 2**24
MAX_CLOCK_ENTRIES = 2**27


def plan_execution_violations(plan: ExecutionPlan, max_cells: int = MAX_CELLS) -> list[ProgramViolation]:
    """Return what goes wrong when the structurally sound `plan` runs; the first fault ends the run.

    What each block does depends on no order of the blocks, because each direction of a channel and each semaphore has
    one block at either end (G. Kahn, 1974): one run finds every deadlock, and, by its clocks, every race.
    O(operations * blocks + chunks moved * blocks of a rank).

    max_cells: limit of memory, in chunks on all ranks; a plan beyond it breaks the rule `size`
    """
    excess = _excess(plan, max_cells)
    return [ProgramViolation.at("size", excess)] if excess else _Run(plan).violations()


def _excess(plan: ExecutionPlan, max_cells: int) -> str:
    blocks = sum(len(body.blocks) for body in plan.ranks)
    operations = [item for body in plan.ranks for block in body.blocks for item in block.operations]
    sizes = (
        ("chunks moved by all operations", sum(each.count for item in operations for each in item.sources), MAX_MOVES),
        ("chunks of memory on all ranks", sum(plan.layout(r).cells for r in range(len(plan.ranks))), max_cells),
        ("clock entries", blocks * len(operations), MAX_CLOCK_ENTRIES),
    )
    for what, value, largest in sizes:
        if value > largest:
            return f"{what}: {value} are more than the {largest} that can be checked"
    return ""


class _Run:
    """One run of a plan."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self._order = HappensBefore(plan)
        self._memory = PlanMemory(plan, self._order)
        self._blocks = [(rank, index) for rank, body in enumerate(plan.ranks) for index in range(len(body.blocks))]
        self._at = [0] * len(self._blocks)

    def violations(self) -> list[ProgramViolation]:
        moved = True
        while moved:
            moved = False
            for number in range(len(self._blocks)):
                begun = self._at[number]
                fault = self._advance(number)
                if fault is not None:
                    return [fault]
                moved |= self._at[number] > begun
        stuck = self._stuck()
        if stuck:
            return stuck
        self._order.finish()
        values = self._memory.values
        layouts = [self._plan.layout(rank) for rank in range(len(self._plan.ranks))]
        return self._late() or result_violations(self._plan, layouts, self._memory.first_cell, values)

    def _advance(self, number: int) -> ProgramViolation | None:
        """Go on with a block as far as it can; return the first fault."""
        rank, index = self._blocks[number]
        operations = self._plan.ranks[rank].blocks[index].operations
        while self._at[number] < len(operations):
            operation = operations[self._at[number]]
            if not self._order.try_advance(number, operation):
                return None
            fault = self._move(number, operation) if operation.action.moves else None
            if fault is not None:
                return ProgramViolation.at(fault[0], fault[1], rank, index, self._at[number])
            self._at[number] += 1
        return None

    def _move(self, number: int, operation: Operation) -> tuple[str, str] | None:
        """Move data; return the rule that it breaks, and how."""
        memory = self._memory
        read = [memory.cells(number, operand) for operand in operation.sources]
        written = [memory.cells(number, operand) for operand in operation.targets]
        for cells in read:
            if (memory.values.identity[cells] < 0).any():
                return "uninitialised", "reads a chunk that was never written"
        other = memory.racing_access(number, read, written)
        if other is not None:
            return "race", f"touches a chunk that {self._name(other, number)} touches too, and nothing orders the two"
        if operation.action is Action.REDUCE:
            faulty = memory.add(read, written[0])
            return None if faulty is None else ("reduction", self._sum(*faulty))
        for source, target in zip(read, written, strict=True):
            memory.copy(source, target)
        return None

    def _sum(self, added: ChunkValues, to: ChunkValues) -> str:
        return f"adds {describe(added, 0, self._plan)} to {describe(to, 0, self._plan)}"

    def _name(self, other: int, number: int) -> str:
        if other == number:
            return "it, without a nop between,"
        if other >= len(self._blocks):
            return f"rank {other - len(self._blocks)} may still need from before the call"
        rank, index = self._blocks[other]
        return f"block {index} of rank {rank}"

    def _late(self) -> list[ProgramViolation]:
        """What others write must have arrived before the call ends."""
        found = []
        for rank in range(len(self._plan.ranks)):
            writer = self._memory.unordered_writer_at_end(rank)
            if writer is not None:
                message = f"its call may end before {self._name(writer, -1)} has written to it"
                found.append(ProgramViolation.at("late put", message, rank))
        return found

    def _stuck(self) -> list[ProgramViolation]:
        found = []
        for number, (rank, index) in enumerate(self._blocks):
            operations = self._plan.ranks[rank].blocks[index].operations
            if self._at[number] < len(operations):
                operation = operations[self._at[number]]
                found.append(
                    ProgramViolation.at(
                        "deadlock", f"{operation.action.value} never ends", rank, index, self._at[number]
                    )
                )
        return found[:MAX_REPORTED]
