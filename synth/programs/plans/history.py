"""A call of a plan on parts of chunks, turn by turn: what moved what where, whatever is wrong with it."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from chorale.synth.programs.memory import BufferShape, cell_name
from chorale.synth.programs.part_history import Explanation, Part, PartHistory, Position, parts_of, sum_of
from chorale.synth.programs.plans.moves import Move, Step, Stretch
from chorale.synth.programs.plans.plan import ExecutionPlan, Operation
from chorale.synth.programs.plans.run import Fault, PlanRun
from chorale.synth.programs.postconditions import expected_outputs, initial_inputs, words_of
from chorale.synth.programs.program import ProgramViolation


class OperationTurn(NamedTuple):
    """When an operation was done, or None where it never is; of a pipeline each of its operations has a turn."""

    step: int
    operation: Operation
    at: int | None


class PlanHistory(PlanRun):
    """One call of a structurally sound plan, in which each block does one operation a turn if nothing holds it up.

    Nothing is refused, so that all is done that ever will be. O(turns * blocks + chunks moved).
    """

    def __init__(self, plan: ExecutionPlan, parts: int = 1) -> None:
        super().__init__(plan, parts, 1)
        self._shape = BufferShape(plan.collective.name, plan.chunks, len(plan.ranks), plan.in_place)
        self._parts = PartHistory(plan, self._cell_name)
        self._held: list[Part | None] = [None] * self._memory.first_cell[-1]
        self._sums: dict[Position, tuple[Part, tuple[tuple[str, Position | None], ...]]] = {}
        self._turns: list[list[int]] = [[] for _ in self._blocks]
        for rank in range(len(plan.ranks)):
            first = self._memory.first_cell[rank] + plan.layout(rank).input_base * self._pieces
            for chunk, part in enumerate(parts_of(plan, initial_inputs(plan, rank), rank)):
                for cell in range(first + chunk * self._pieces, first + (chunk + 1) * self._pieces):
                    self._held[cell] = part
                    self._parts.begin(cell, part)

    def run(self) -> None:
        """Do all operations that can be done."""
        for rank in range(len(self._plan.ranks)):
            self._begin(rank, 1)
        turn, moved = 0, True
        while moved:
            ready = [number for number in range(len(self._blocks)) if self._is_ready(number)]
            moved = False
            for number in ready:
                if self._step(number) is True:
                    self._turns[number].append(turn)
                    moved = True
            turn += 1

    def turns(self) -> dict[tuple[int, int], list[OperationTurn]]:
        """Return, by rank and block, its operations in their order, and their turns."""
        found = {}
        for number, end in enumerate(self._blocks):
            done = self._turns[number]
            steps = enumerate(self._steps[number])
            found[end] = [
                OperationTurn(step.number, step.operation, done[k] if k < len(done) else None) for k, step in steps
            ]
        return found

    def explain(self, violation: ProgramViolation) -> Explanation | None:
        """Return what is behind a wrong result or sum, or a chunk that is read before it is written."""
        if violation.rule == "result" and violation.rank is not None and violation.chunk is not None:
            return self._missing(violation.rank, violation.chunk)
        if violation.rank is None or violation.block is None or violation.step is None:
            return None
        position = violation.rank, violation.block, violation.step
        if violation.rule == "reduction" and position in self._sums:
            return self._parts.wrong_sum(*self._sums[position])
        return None

    def _missing(self, rank: int, chunk: int) -> Explanation | None:
        expected = expected_outputs(self._plan, rank)
        if expected is None:
            return None
        required = parts_of(self._plan, expected, None)[chunk]
        base = self._memory.first_cell[rank] + (self._plan.layout(rank).output_base + chunk) * self._pieces
        cells = range(base, base + self._pieces)
        wrong = next((cell for cell in cells if self._held[cell] != required), base)
        return self._parts.wrong_result(wrong, self._held[wrong], required, rank)

    def _end(self, rank: int) -> list[ProgramViolation]:
        self._begin(rank, self._call[rank] + 1)
        return []

    def _move(self, number: int, step: Step, move: Move) -> Fault | None:
        """Move parts, and tell what is told with them."""
        rank, index = self._blocks[number]
        call, doer = self._call[rank], self._doer(number, step, move)
        position = rank, index, step.number
        sources = [self._memory.cells(each) for each in (*move.reads, *move.takes)]
        totals = [self._total(position, [cells.start + k for cells in sources]) for k in range(_length(move))]
        for stretch in (*move.writes, *move.packets):
            first = self._memory.cells(stretch).start
            for cell, part in enumerate(totals, first):
                self._parts.record(position, part, stretch.rank, cell=cell)
                self._held[cell] = part
        for stretch in move.packets:
            self._packets.put(doer, stretch, call, self._no_data(stretch))
        self._signal(number, step, move)
        return None

    def _total(self, position: Position, cells: list[int]) -> Part | None:
        """Return the sum of what `cells` hold; what goes wrong in it is remembered."""
        total = self._held[cells[0]]
        for cell in cells[1:]:
            added = self._held[cell]
            if total is None or added is None:
                return None
            before, total = total, sum_of(total, added)
            if before.is_sum and added.is_sum and not total.is_sum:
                writers = [each for each in map(self._parts.last_write, (cells[0], cell)) if each is not None]
                verbs = ("one was put there by", "the other was put there by")
                self._sums.setdefault(position, (total, tuple(zip(verbs, writers, strict=False))))
        return total

    def _no_data(self, stretch: Stretch) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(stretch.count, dtype=np.int64), np.zeros((stretch.count, words_of(self._plan)), dtype=np.uint64)

    def _cell_name(self, cell: int) -> str:
        rank = bisect_right(self._memory.first_cell, cell) - 1
        offset = (cell - self._memory.first_cell[rank]) // self._pieces
        return cell_name(self._shape, rank, self._plan.layout(rank), offset)


def _length(move: Move) -> int:
    return (*move.reads, *move.takes)[0].count
