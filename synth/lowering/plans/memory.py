"""The memory of all ranks during a run of a plan: contents, and who touched each chunk when."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lowering.definition import ChunkValues, initial_inputs, unwritten_values, words_of
from chorale.synth.lowering.plans.order import HappensBefore
from chorale.synth.lowering.plans.plan import ExecutionPlan, Operand

Readings = NDArray[np.int32]


class PlanMemory:
    """Cells of all ranks one after another.

    values:     what they hold
    first_cell: where the memory of each rank begins, and the end
    Before the call begins, a rank has written all its cells: nobody else may touch them before he knows that it has.
    """

    def __init__(self, plan: ExecutionPlan, order: HappensBefore) -> None:
        self._plan = plan
        self._order = order
        self._layouts = [plan.layout(rank) for rank in range(len(plan.ranks))]
        self.first_cell = [0, *accumulate(layout.cells for layout in self._layouts)]
        self.values: ChunkValues = unwritten_values(self.first_cell[-1], words_of(plan))
        self._writer = np.zeros(self.first_cell[-1], dtype=np.int32)
        self._written = np.ones(self.first_cell[-1], dtype=np.int32)
        self._first_block = [0, *accumulate(len(body.blocks) for body in plan.ranks)]
        self._read: list[Readings] = []
        for rank, layout in enumerate(self._layouts):
            first = self.first_cell[rank]
            self._writer[first : first + layout.cells] = order.begun + rank
            self._read.append(np.zeros((layout.cells, len(plan.ranks[rank].blocks)), dtype=np.int32))
            inputs = initial_inputs(plan, rank)
            own = slice(first + layout.input_base, first + layout.input_base + len(inputs.identity))
            self.values.identity[own], self.values.members[own] = inputs.identity, inputs.members

    def cells(self, block: int, operand: Operand) -> slice:
        """Return the cells that `operand` of `block` names."""
        rank = self._order.owner[block]
        body = self._plan.ranks[rank]
        buffer = operand.buffer
        if operand.remote is not None:
            remotes = body.blocks[block - self._first_block[rank]].remotes
            rank, buffer = body.remotes[remotes[operand.remote]]
        first = self.first_cell[rank] + self._layouts[rank].base(buffer or "s") + operand.first
        return slice(first, first + operand.count)

    def racing_access(self, block: int, read: list[slice], written: list[slice]) -> int | None:
        """Note the accesses of an operation of `block`; return a block (or, above, a rank) that touches one of the
        cells without order, if there is one."""
        for cells in (*read, *written):
            known = self._order.happened_before(block, self._writer[cells], self._written[cells])
            if not known.all():
                return int(self._writer[cells][~known][0])
        for cells in written:
            other = self._unknown_reader(block, cells)
            if other is not None:
                return other
        time = self._order.next_time(block)
        for cells in read:
            own, rows = self._rows(cells)
            self._read[own][rows, block - self._first_block[own]] = time
        for cells in written:
            own, rows = self._rows(cells)
            self._read[own][rows] = 0
            self._writer[cells], self._written[cells] = block, time
        return None

    def copy(self, source: slice, target: slice) -> None:
        """Copy the contents of cells; nothing else happens meanwhile."""
        self.values.identity[target] = self.values.identity[source]
        self.values.members[target] = self.values.members[source]

    def add(self, sources: list[slice], target: slice) -> tuple[ChunkValues, ChunkValues] | None:
        """Write the sum of `sources`; return two summands that have no sum, if there are such."""
        identity = self.values.identity[sources[0]].copy()
        members = self.values.members[sources[0]].copy()
        for source in sources[1:]:
            more = self.values.members[source]
            wrong = self.values.identity[source] != identity
            # Without words every chunk has one contribution only, and no sum.
            wrong |= (members & more).any(axis=1) if members.shape[1] else True
            if wrong.any():
                at = slice(first := int(np.flatnonzero(wrong)[0]), first + 1)
                return ChunkValues(self.values.identity[source][at], more[at]), ChunkValues(identity[at], members[at])
            members |= more
        self.values.identity[target], self.values.members[target] = identity, members
        return None

    def unordered_writer_at_end(self, rank: int) -> int | None:
        """Return a block that wrote to `rank` without its hearing of it, if there is one."""
        own = slice(self.first_cell[rank], self.first_cell[rank + 1])
        unknown = self._order.final_clock(rank)[self._writer[own]] < self._written[own]
        return int(self._writer[own][unknown][0]) if unknown.any() else None

    def _unknown_reader(self, block: int, cells: slice) -> int | None:
        own, rows = self._rows(cells)
        first, end = self._first_block[own], self._first_block[own + 1]
        unknown = (self._read[own][rows] > self._order.clock[block, first:end]).any(axis=0)
        return first + int(np.flatnonzero(unknown)[0]) if unknown.any() else None

    def _rows(self, cells: slice) -> tuple[int, slice]:
        """Return the rank that has `cells`, and which of its cells they are."""
        rank = int(np.searchsorted(self.first_cell, cells.start, side="right")) - 1
        first = self.first_cell[rank]
        return rank, slice(cells.start - first, cells.stop - first)
