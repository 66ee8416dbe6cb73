"""The memory of all ranks during calls of a plan, with what orders the accesses to each piece of a chunk."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.plans.clocks import HAPPENED, ORDERED, PlanClocks
from chorale.synth.programs.plans.moves import Stretch
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import ChunkValues, initial_inputs, unwritten_values, words_of

Times = NDArray[np.int32]


class PlanMemory:
    """Pieces of chunks of all ranks one after another.

    values:     what they hold; chunks of call n are numbered from n * `stride`
    first_cell: where the memory of each rank begins, and the end, in pieces
    Before a call begins, a rank has written its input and all other memory: nobody else may touch it before he knows
    that the call has begun. What was read is known to be over as soon as it happened; what was written has to be
    ordered, unless the switch wrote it.
    """

    def __init__(self, plan: ExecutionPlan, clocks: PlanClocks, pieces: int) -> None:
        self._plan, self._clocks, self._pieces = plan, clocks, pieces
        self._layouts = [plan.layout(rank) for rank in range(len(plan.ranks))]
        self.first_cell = [0, *accumulate(layout.cells * pieces for layout in self._layouts)]
        self.stride = plan.chunks * len(plan.ranks)
        cells = self.first_cell[-1]
        self.values: ChunkValues = unwritten_values(cells, words_of(plan))
        self._writer: Times = np.zeros(cells, dtype=np.int32)
        self._written: Times = np.zeros(cells, dtype=np.int32)
        self._happened_is_enough = np.zeros(cells, dtype=np.bool_)
        self._read: list[dict[int, Times]] = [{} for _ in plan.ranks]

    def begin(self, rank: int, call: int) -> None:
        """Let `rank` begin `call`: its input is there, what its output holds does not matter any more."""
        first, end = self.first_cell[rank], self.first_cell[rank + 1]
        layout = self._layouts[rank]
        kept = first + layout.scratch_base * self._pieces if call > 1 else end
        self._writer[first:kept], self._written[first:kept] = self._clocks.begun + rank, call
        self._happened_is_enough[first:kept] = True
        self.values.identity[first:kept] = -1
        for times in self._read[rank].values():
            times[: kept - first] = 0
        inputs = initial_inputs(self._plan, rank)
        own = slice(first + layout.input_base * self._pieces, None)
        count = len(inputs.identity) * self._pieces
        self.values.identity[own][:count] = np.repeat(inputs.identity + call * self.stride, self._pieces)
        self.values.members[own][:count] = np.repeat(inputs.members, self._pieces, axis=0)

    def cells(self, stretch: Stretch) -> slice:
        """Return where `stretch` lies."""
        base = self._layouts[stretch.rank].base(stretch.buffer) * self._pieces
        first = self.first_cell[stretch.rank] + base + stretch.first
        return slice(first, first + stretch.count)

    def unwritten(self, stretch: Stretch) -> bool:
        """Return whether `stretch` has a piece that was never written."""
        return bool((self.values.identity[self.cells(stretch)] < 0).any())

    def racing_access(
        self, component: int, read: tuple[Stretch, ...], written: tuple[Stretch, ...], switch: bool
    ) -> int | None:
        """Note the accesses of a block or proxy; return whose access to one of the pieces comes in no order."""
        for stretch in (*read, *written):
            other = self._unordered_writer(component, self.cells(stretch))
            if other is not None:
                return other
        for stretch in written:
            other = self._unknown_reader(component, stretch)
            if other is not None:
                return other
        time = self._clocks.time(component)
        for stretch in read:
            self._times(stretch.rank, component)[self._rows(stretch)] = time
        for stretch in written:
            cells = self.cells(stretch)
            for times in self._read[stretch.rank].values():
                times[self._rows(stretch)] = 0
            self._writer[cells], self._written[cells] = component, time
            self._happened_is_enough[cells] = switch
        return None

    def held(self, stretch: Stretch) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
        """Return a copy of what `stretch` holds."""
        cells = self.cells(stretch)
        return self.values.identity[cells].copy(), self.values.members[cells].copy()

    def store(self, stretch: Stretch, data: tuple[NDArray[np.int64], NDArray[np.uint64]]) -> None:
        """Let `stretch` hold `data`."""
        cells = self.cells(stretch)
        self.values.identity[cells], self.values.members[cells] = data

    def late_access(self, rank: int) -> int | None:
        """Return who wrote to `rank`, or read of it, without its hearing of that, as its call ends; None for nobody."""
        own = slice(self.first_cell[rank], self.first_cell[rank + 1])
        blocks = [block for block, owner in enumerate(self._clocks.owner) if owner == rank]
        if not blocks:
            return None
        known = self._clocks.clock[blocks].max(axis=0)
        late = self._later(known, own)
        if late.any():
            return int(self._writer[own][late][0])
        mine = {self._clocks.proxy.get((rank, port)) for port in range(len(self._plan.ranks[rank].port_peers))}
        for reader, times in self._read[rank].items():
            if reader not in mine and (times > known[HAPPENED, reader]).any():
                return reader
        return None

    def _unordered_writer(self, component: int, cells: slice) -> int | None:
        unknown = self._later(self._clocks.clock[component], cells)
        return int(self._writer[cells][unknown][0]) if unknown.any() else None

    def _later(self, known: Times, cells: slice) -> NDArray[np.bool_]:
        """Return which of `cells` were written after all that `known` orders before."""
        writer = self._writer[cells]
        times = np.where(self._happened_is_enough[cells], known[HAPPENED, writer], known[ORDERED, writer])
        return np.asarray(times < self._written[cells])

    def _unknown_reader(self, component: int, stretch: Stretch) -> int | None:
        rows, known = self._rows(stretch), self._clocks.clock[component, HAPPENED]
        for reader, times in self._read[stretch.rank].items():
            if (times[rows] > known[reader]).any():
                return reader
        return None

    def _times(self, rank: int, component: int) -> Times:
        """Return when `component` last read each piece of `rank`."""
        if component not in self._read[rank]:
            cells = self.first_cell[rank + 1] - self.first_cell[rank]
            self._read[rank][component] = np.zeros(cells, dtype=np.int32)
        return self._read[rank][component]

    def _rows(self, stretch: Stretch) -> slice:
        cells, first = self.cells(stretch), self.first_cell[stretch.rank]
        return slice(cells.start - first, cells.stop - first)
