"""The memory of all ranks during calls of a plan, with what orders the accesses to each piece of a chunk."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import BufferShape, cell_name
from chorale.synth.programs.plans.clocks import HAPPENED, ORDERED, Clock, PlanClocks
from chorale.synth.programs.plans.moves import Stretch
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import ChunkValues, initial_inputs, unwritten_values, words_of
from chorale.synth.programs.program import Buffer

Times = NDArray[np.int32]
Data = tuple[NDArray[np.int64], NDArray[np.uint64]]
"""Which chunks pieces are of, and who contributed to them."""


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
        # Of each rank: who read it, and when each of them last read each piece.
        self._readers: list[list[int]] = [[] for _ in plan.ranks]
        sizes = (layout.cells * pieces for layout in self._layouts)
        self._read: list[Times] = [np.zeros((0, size), dtype=np.int32) for size in sizes]
        self._cells: dict[Stretch, slice] = {}

    def begin(self, rank: int, call: int) -> None:
        """Let `rank` begin `call`: its input is there, what its output holds does not matter any more."""
        first, end = self.first_cell[rank], self.first_cell[rank + 1]
        layout = self._layouts[rank]
        kept = first + layout.scratch_base * self._pieces if call > 1 else end
        self._writer[first:kept], self._written[first:kept] = self._clocks.begun + rank, call
        self._happened_is_enough[first:kept] = True
        self.values.identity[first:kept] = -1
        self._read[rank][:, : kept - first] = 0
        inputs = initial_inputs(self._plan, rank)
        own = slice(first + layout.input_base * self._pieces, None)
        count = len(inputs.identity) * self._pieces
        self.values.identity[own][:count] = np.repeat(inputs.identity + call * self.stride, self._pieces)
        self.values.members[own][:count] = np.repeat(inputs.members, self._pieces, axis=0)

    def cells(self, stretch: Stretch) -> slice:
        """Return where `stretch` lies."""
        found = self._cells.get(stretch)
        if found is None:
            base = self._layouts[stretch.rank].base(stretch.buffer) * self._pieces
            first = self.first_cell[stretch.rank] + base + stretch.first
            found = self._cells[stretch] = slice(first, first + stretch.count)
        return found

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
            row = self._reader(stretch.rank, component)
            self._read[stretch.rank][row, self._rows(stretch)] = time
        for stretch in written:
            cells = self.cells(stretch)
            self._read[stretch.rank][:, self._rows(stretch)] = 0
            self._writer[cells], self._written[cells] = component, time
            self._happened_is_enough[cells] = switch
        return None

    def held(self, stretch: Stretch) -> Data:
        """Return a copy of what `stretch` holds."""
        cells = self.cells(stretch)
        return self.values.identity[cells].copy(), self.values.members[cells].copy()

    def store(self, stretch: Stretch, data: Data) -> None:
        """Let `stretch` hold `data`."""
        cells = self.cells(stretch)
        self.values.identity[cells], self.values.members[cells] = data

    def late_access(self, rank: int, blocks: list[int]) -> ChunkAccess | None:
        """Return a write to `rank`, or a read of it, of which its `blocks` have not heard as its call ends; None for
        none."""
        own = slice(self.first_cell[rank], self.first_cell[rank + 1])
        if not blocks:
            return None
        known = self._clocks.clock[blocks].max(axis=0)
        late = self._later(known, own)
        if late.any():
            return self._write(own.start + int(np.flatnonzero(late)[0]))
        mine = {self._clocks.proxy.get((rank, port)) for port in range(len(self._plan.ranks[rank].port_peers))}
        for row, reader in enumerate(self._readers[rank]):
            later = np.flatnonzero(self._read[rank][row] > known[HAPPENED, reader])
            if reader not in mine and len(later):
                return self._access(reader, int(self._read[rank][row, later[0]]), own.start + int(later[0]))
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
        unknown = self._later(self._clocks.clock[component], cells)
        return self._write(cells.start + int(unknown.argmax())) if unknown.any() else None

    def _later(self, known: Clock, cells: slice) -> NDArray[np.bool_]:
        """Return which of `cells` were written after all that `known` orders before."""
        writer = self._writer[cells]
        times = np.where(self._happened_is_enough[cells], known[HAPPENED, writer], known[ORDERED, writer])
        return np.asarray(times < self._written[cells])

    def _unknown_reader(self, component: int, stretch: Stretch) -> ChunkAccess | None:
        rows, readers = self._rows(stretch), self._readers[stretch.rank]
        times = self._read[stretch.rank][:, rows]
        later = times > self._clocks.clock[component, HAPPENED, readers][:, None]
        if not later.any():
            return None
        reader, piece = (int(each[0]) for each in np.nonzero(later))
        cell = self.first_cell[stretch.rank] + rows.start + piece
        return self._access(readers[reader], int(times[reader, piece]), cell)

    def _reader(self, rank: int, component: int) -> int:
        """Return in which row it stands when `component` read the memory of `rank`."""
        readers = self._readers[rank]
        if component not in readers:
            readers.append(component)
            self._read[rank] = np.pad(self._read[rank], ((0, 1), (0, 0)))
        return readers.index(component)

    def _rows(self, stretch: Stretch) -> slice:
        cells, first = self.cells(stretch), self.first_cell[stretch.rank]
        return slice(cells.start - first, cells.stop - first)


Slot = tuple[int, int, int]
"""Rank, half of its scratch, piece."""


@dataclass(slots=True)
class Packet:
    """What a slot holds: the call, the data, what its writer had done, who wrote it when, and who has read it since."""

    call: int
    identity: int
    members: NDArray[np.uint64]
    told: Clock
    writer: int
    time: int
    readers: dict[int, int] = field(default_factory=dict)


class PacketSlots:
    """The packets of all ranks in scratch: data with the number of the call that wrote them, for which readers wait."""

    def __init__(self, clocks: PlanClocks, double_scratch: bool, pieces: int) -> None:
        self._clocks, self._pieces = clocks, pieces
        self._halves = 2 if double_scratch else 1
        self._slots: dict[Slot, Packet] = {}

    def slots(self, stretch: Stretch, call: int) -> Iterator[Slot]:
        """Yield the slots of `stretch` in `call`."""
        half = call % self._halves
        return ((stretch.rank, half, stretch.first + piece) for piece in range(stretch.count))

    def missing(self, stretch: Stretch, call: int) -> bool:
        """Return whether a packet of `call` is missing in `stretch`."""
        return any(
            (packet := self._slots.get(slot)) is None or packet.call < call for slot in self.slots(stretch, call)
        )

    def unknown_writer(self, component: int, stretch: Stretch, call: int) -> ChunkAccess | None:
        """Return the write of a packet of `stretch` that is not known to be there; None for none."""
        known = self._clocks.clock[component, HAPPENED]
        packets = ((slot, self._slots[slot]) for slot in self.slots(stretch, call))
        return next((self._write(slot, packet) for slot, packet in packets if known[packet.writer] < packet.time), None)

    def racing(self, component: int, stretch: Stretch, call: int, write: bool) -> ChunkAccess | None:
        """Return the access of who may still use a slot of `stretch` when a block or proxy writes it, or has written it
        again before it is read; None for none."""
        known = self._clocks.clock[component, HAPPENED]
        for slot in self.slots(stretch, call):
            packet = self._slots.get(slot)
            if packet is None:
                continue
            if not write:
                if packet.call > call:
                    return self._write(slot, packet)
                continue
            if packet.call == call or known[packet.writer] < packet.time:
                return self._write(slot, packet)
            unknown = [reader for reader, time in packet.readers.items() if known[reader] < time]
            if unknown:
                return self._access(unknown[0], packet.readers[unknown[0]], slot)
        return None

    def _write(self, slot: Slot, packet: Packet) -> ChunkAccess:
        return self._access(packet.writer, packet.time, slot)

    def _access(self, component: int, time: int, slot: Slot) -> ChunkAccess:
        return ChunkAccess(component, time, slot[0], "s", slot[2] // self._pieces)

    def take(self, component: int, stretch: Stretch, call: int) -> Data:
        """Return what the packets of `stretch` hold; the reader learns what their writers had done."""
        packets = [self._slots[slot] for slot in self.slots(stretch, call)]
        time = self._clocks.time(component)
        known = self._clocks.clock[component, HAPPENED]
        for packet in packets:
            packet.readers[component] = time
            np.maximum(known, packet.told, out=known)
        identity = np.array([packet.identity for packet in packets], dtype=np.int64)
        return identity, np.array([packet.members for packet in packets], dtype=np.uint64)

    def put(self, component: int, stretch: Stretch, call: int, data: Data) -> None:
        """Write `data` as packets of `call`."""
        told, time = self._clocks.packet(component), self._clocks.time(component)
        identity, members = data
        for piece, slot in enumerate(self.slots(stretch, call)):
            self._slots[slot] = Packet(call, int(identity[piece]), members[piece].copy(), told, component, time)
