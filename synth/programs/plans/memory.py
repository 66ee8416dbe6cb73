"""The memory of all ranks during a run of a plan, with vector clocks that order the accesses to each chunk.

Component b of a clock counts the stretches between the `nop`s of block b that are over; the further components say of
each rank whether its call has begun. A block knows what all its threads know; a single thread also knows, until the
next `nop`, what it waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Operand, Operation
from chorale.synth.programs.postconditions import ChunkValues, initial_inputs, unwritten_values, words_of

VectorClock = NDArray[np.int32]


class HappensBefore:
    """Signals, semaphores and clocks of a run."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self.owner = [rank for rank, body in enumerate(plan.ranks) for _ in body.blocks]
        self.begun = len(self.owner)  # the component of rank 0
        self.clock: NDArray[np.int32] = np.zeros((self.begun, self.begun + len(plan.ranks)), dtype=np.int32)
        for block, rank in enumerate(self.owner):
            self.clock[block, self.begun + rank] = 1
        self._threads: list[dict[int, VectorClock]] = [{} for _ in self.owner]
        self._first = np.searchsorted(self.owner, np.arange(len(plan.ranks)))
        self._signals: dict[tuple[int, int], deque[VectorClock]] = defaultdict(deque)
        self._released: dict[tuple[int, int], deque[VectorClock]] = defaultdict(deque)
        self._ends = [[plan.other_end(rank, n) for n in range(len(body.peers))] for rank, body in enumerate(plan.ranks)]
        for rank, body in enumerate(plan.ranks):
            acquired = Counter(
                number
                for block in body.blocks
                for operation in block.operations
                for number in operation.semaphores
                if operation.action is Action.ACQUIRE
            )
            for number, value in enumerate(body.semaphores):
                nothing = [np.zeros_like(self.clock[0])]
                self._released[rank, number].extend(nothing * min(value, acquired[number]))

    def try_advance(self, block: int, operation: Operation) -> bool:
        """Do what `operation` of `block` does besides moving data; return False if it has to wait."""
        rank = self.owner[block]
        if operation.action is Action.NOP:
            self._join(block)
        elif operation.action is Action.SIGNAL:
            for thread, number in enumerate(self._channels(block, operation)):
                self._signals[self._ends[rank][number]].append(self._knowledge(block, thread))
        elif operation.action is Action.RELEASE:
            for thread, number in enumerate(operation.semaphores):
                self._released[rank, number].append(self._knowledge(block, thread))
        elif operation.action is Action.WAIT:
            return self._receive(block, [self._signals[rank, number] for number in self._channels(block, operation)])
        elif operation.action is Action.ACQUIRE:
            return self._receive(block, [self._released[rank, number] for number in operation.semaphores])
        return True

    def happened_before(self, block: int, component: NDArray[np.int32], time: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return, for each event, whether all threads of `block` come after it."""
        return np.asarray(self.clock[block, component] >= time)

    def next_time(self, block: int) -> int:
        """Return the time of what `block` does now: it is over with the next nop."""
        return int(self.clock[block, block]) + 1

    def finish(self) -> None:
        """All threads of all blocks come to their ends."""
        for block in range(len(self.owner)):
            self._join(block)

    def final_clock(self, rank: int) -> VectorClock:
        """Return what all blocks of `rank` know together."""
        blocks = [block for block, owner in enumerate(self.owner) if owner == rank]
        return np.asarray(self.clock[blocks].max(axis=0))

    def _channels(self, block: int, operation: Operation) -> list[int]:
        rank = self.owner[block]
        channels = self._plan.ranks[rank].blocks[block - int(self._first[rank])].channels
        return [channels[local] for local in operation.channels]

    def _knowledge(self, block: int, thread: int) -> VectorClock:
        """Return what a thread may tell: of the data that its block moves now, nothing."""
        return np.asarray(np.maximum(self.clock[block], self._threads[block].get(thread, 0)))

    def _receive(self, block: int, queues: list[deque[VectorClock]]) -> bool:
        if not all(queues):
            return False
        for thread, queue in enumerate(queues):
            self._threads[block][thread] = np.maximum(self._knowledge(block, thread), queue.popleft())
        return True

    def _join(self, block: int) -> None:
        self.clock[block, block] += 1
        for known in self._threads[block].values():
            np.maximum(self.clock[block], known, out=self.clock[block])
        self._threads[block].clear()


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
