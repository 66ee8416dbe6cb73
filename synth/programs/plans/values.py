"""Executes one call of a plan on values of any type, for example on expressions or on parts of chunks."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from chorale.synth.programs.plans.moves import Move, Step
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.plans.run import Fault, PlanRun
from chorale.synth.programs.postconditions import words_of
from chorale.synth.programs.program import ProgramViolation

Value = TypeVar("Value")


class PlanValues(PlanRun, ABC, Generic[Value]):
    """Executes one call of a sound plan. In each turn, every block that can proceed executes one operation.

    Faults do not end the call, so every operation that can be executed is executed. O(turns * blocks + chunks moved).

    held: contents of all pieces of memory of all ranks; None for a piece that was never written
    """

    def __init__(self, plan: ExecutionPlan) -> None:
        super().__init__(plan, parts=1, calls=1)
        self.held: list[Value | None] = [None] * self._memory.first_cell[-1]

    @abstractmethod
    def total(self, cells: Sequence[int]) -> Value | None:
        """Return the sum of the contents of `cells`, added in this order."""

    def pieces_of(self, rank: int, cell: int) -> range:
        """Return the pieces of a cell in the memory of `rank`."""
        first = self._memory.first_cell[rank] + cell * self._pieces
        return range(first, first + self._pieces)

    def run(self) -> None:
        """Execute all operations that can be executed."""
        for rank in range(len(self._plan.ranks)):
            self._begin(rank, 1)
        moved = True
        while moved:
            # Use a list rather than a generator, so that every block has its turn.
            moved = any([self._has_more(number) and self._step(number) is True for number in range(len(self._blocks))])

    def _end(self, rank: int) -> list[ProgramViolation]:
        self._begin(rank, self._call[rank] + 1)
        return []

    def _move(self, number: int, step: Step, move: Move) -> Fault | None:
        rank, _ = self._blocks[number]
        call, doer = self._call[rank], self._doer(number, step, move)
        stretches = (*move.reads, *move.takes)
        sources = [self._memory.cells(each).start for each in stretches]
        totals = [self.total([start + k for start in sources]) for k in range(stretches[0].count)]
        for stretch in (*move.writes, *move.packets):
            for cell, value in enumerate(totals, self._memory.cells(stretch).start):
                self.held[cell] = value
        for stretch in move.packets:
            nothing = np.zeros((stretch.count, words_of(self._plan)), dtype=np.uint64)
            self._packets.put(doer, stretch, call, (np.zeros(stretch.count, dtype=np.int64), nothing))
        self._signal(number, step, move)
        return None
