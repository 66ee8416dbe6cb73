"""The memory of all ranks during calls of a plan, with what orders the accesses to each piece of a chunk."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import BufferShape, cell_name
from chorale.synth.programs.plans.clocks import HAPPENED, ORDERED, PlanClocks
from chorale.synth.programs.plans.moves import Stretch
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import ChunkValues, initial_inputs, unwritten_values, words_of
from chorale.synth.programs.program import Buffer

Times = NDArray[np.int32]


class ChunkAccess(NamedTuple):
    """Who touched a piece of a chunk, a block, a proxy or the beginning of a call, and at which time of its clock."""

    component: int
    time: int
    rank: int
    buffer: Buffer
    chunk: int


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
        self._shape = BufferShape(plan.collective.name, plan.chunks, len(plan.ranks), plan.in_place)
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

    def unwritten_name(self, stretch: Stretch) -> str:
        """Return the first chunk of `stretch` that was never written, in words."""
        cells = self.cells(stretch)
        piece = cells.start + int(np.argmax(self.values.identity[cells] < 0))
        where = self._access(0, 0, piece)
        return self.name(where.rank, where.buffer, where.chunk)

    def racing_access(
        self, component: int, read: tuple[Stretch, ...], written: tuple[Stretch, ...], switch: bool
    ) -> ChunkAccess | None:
        """Note the accesses of a block or proxy; return another access to one of the pieces that comes in no order."""
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

    def late_access(self, rank: int) -> ChunkAccess | None:
        """Return a write to `rank`, or a read of it, of which it has not heard as its call ends; None for none."""
        own = slice(self.first_cell[rank], self.first_cell[rank + 1])
        blocks = [block for block, owner in enumerate(self._clocks.owner) if owner == rank]
        if not blocks:
            return None
        known = self._clocks.clock[blocks].max(axis=0)
        late = self._later(known, own)
        if late.any():
            return self._write(own.start + int(np.flatnonzero(late)[0]))
        mine = {self._clocks.proxy.get((rank, port)) for port in range(len(self._plan.ranks[rank].port_peers))}
        for reader, times in self._read[rank].items():
            later = np.flatnonzero(times > known[HAPPENED, reader])
            if reader not in mine and len(later):
                return self._access(reader, int(times[later[0]]), own.start + int(later[0]))
        return None

    def name(self, rank: int, buffer: Buffer, chunk: int) -> str:
        """Return a chunk in words, by the name of a buffer of results where it is in one."""
        layout = self._layouts[rank]
        return cell_name(self._shape, rank, layout, layout.base(buffer) + chunk)

    def _write(self, cell: int) -> ChunkAccess:
        return self._access(int(self._writer[cell]), int(self._written[cell]), cell)

    def _access(self, component: int, time: int, cell: int) -> ChunkAccess:
        rank = bisect_right(self.first_cell, cell) - 1
        layout, offset = self._layouts[rank], (cell - self.first_cell[rank]) // self._pieces
        buffer: Buffer = "s" if offset >= layout.scratch_base else "o" if offset >= layout.output_base else "i"
        return ChunkAccess(component, time, rank, buffer, offset - layout.base(buffer))

    def _unordered_writer(self, component: int, cells: slice) -> ChunkAccess | None:
        unknown = np.flatnonzero(self._later(self._clocks.clock[component], cells))
        return self._write(cells.start + int(unknown[0])) if len(unknown) else None

    def _later(self, known: Times, cells: slice) -> NDArray[np.bool_]:
        """Return which of `cells` were written after all that `known` orders before."""
        writer = self._writer[cells]
        times = np.where(self._happened_is_enough[cells], known[HAPPENED, writer], known[ORDERED, writer])
        return np.asarray(times < self._written[cells])

    def _unknown_reader(self, component: int, stretch: Stretch) -> ChunkAccess | None:
        rows, known = self._rows(stretch), self._clocks.clock[component, HAPPENED]
        for reader, times in self._read[stretch.rank].items():
            later = np.flatnonzero(times[rows] > known[reader])
            if len(later):
                row = rows.start + int(later[0])
                return self._access(reader, int(times[row]), self.first_cell[stretch.rank] + row)
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
