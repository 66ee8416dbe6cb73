"""The memory of all ranks during calls of a plan, with the latest accesses to each piece of a chunk."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import cell_name, shape_of
from chorale.synth.programs.plans.clocks import HAPPENED, ORDERED, Clock, PlanClocks
from chorale.synth.programs.plans.moves import Stretch
from chorale.synth.programs.plans.plan import ExecutionPlan
from chorale.synth.programs.postconditions import ChunkValues, initial_inputs, unwritten_values, words_of
from chorale.synth.programs.program import Buffer

Times = NDArray[np.int32]
Data = tuple[NDArray[np.int64], NDArray[np.uint64]]
"""(identity, members) of pieces, as in `ChunkValues`."""


class ChunkAccess(NamedTuple):
    """An access to a piece of a chunk, made by `component` (a block, a proxy or the beginning of a call) at `time`."""

    component: int
    time: int
    rank: int
    buffer: Buffer
    chunk: int


class PlanMemory:
    """The memory of all ranks: one entry per piece of a chunk, rank by rank.

    values:     contents of the pieces; the identities of call n begin at n * `stride`
    first_cell: first piece of each rank, followed by the total number of pieces

    The beginning of a call counts as the rank's write to its input and output, so another rank may access them only
    when it knows that the call has begun. To write after a read, it is enough to know that the read has happened. After
    a write, any other access must be ordered, unless a switch made the write; in that case, it is enough to know that
    the write has happened.
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
        # By rank: the readers of its memory, and the time when each reader last read each piece.
        self._readers: list[list[int]] = [[] for _ in plan.ranks]
        self._read: list[Times] = [np.zeros((0, layout.cells * pieces), dtype=np.int32) for layout in self._layouts]
        self._cells: dict[Stretch, slice] = {}

    def begin(self, rank: int, call: int) -> None:
        """Begin `call` of `rank` by writing its input and marking its output as undefined."""
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
        found = self._cells.get(stretch)
        if found is None:
            base = self._layouts[stretch.rank].base(stretch.buffer) * self._pieces
            first = self.first_cell[stretch.rank] + base + stretch.first
            found = self._cells[stretch] = slice(first, first + stretch.count)
        return found

    def unwritten(self, stretch: Stretch) -> bool:
        """Return whether `stretch` contains a piece that was never written."""
        return bool((self.values.identity[self.cells(stretch)] < 0).any())

    def unwritten_name(self, stretch: Stretch) -> str:
        """Return the name of the first chunk in `stretch` that was never written."""
        cells = self.cells(stretch)
        where = self._access(0, 0, cells.start + int(np.argmax(self.values.identity[cells] < 0)))
        return self.name(where.rank, where.buffer, where.chunk)

    def racing_access(
        self, component: int, read: Sequence[Stretch], written: Sequence[Stretch], by_switch: bool
    ) -> ChunkAccess | None:
        """Record the accesses of a block or proxy, unless one of them races with an earlier access.

        Returns:
            An earlier access that is not ordered before one of the new accesses; None if there is none.
        """
        clock = self._clocks.clock[component]
        for stretch in (*read, *written):
            cells = self.cells(stretch)
            late = self._is_later(clock, cells)
            if late.any():
                return self._write(cells.start + int(late.argmax()))
        for stretch in written:
            rows, readers = self._rows(stretch), self._readers[stretch.rank]
            times = self._read[stretch.rank][:, rows]
            later = times > clock[HAPPENED, readers][:, None]
            if later.any():
                reader, piece = (int(each[0]) for each in np.nonzero(later))
                cell = self.first_cell[stretch.rank] + rows.start + piece
                return self._access(readers[reader], int(times[reader, piece]), cell)
        time = self._clocks.time(component)
        for stretch in read:
            readers = self._readers[stretch.rank]
            if component not in readers:
                readers.append(component)
                self._read[stretch.rank] = np.pad(self._read[stretch.rank], ((0, 1), (0, 0)))
            self._read[stretch.rank][readers.index(component), self._rows(stretch)] = time
        for stretch in written:
            cells = self.cells(stretch)
            self._read[stretch.rank][:, self._rows(stretch)] = 0
            self._writer[cells], self._written[cells] = component, time
            self._happened_is_enough[cells] = by_switch
        return None

    def held(self, stretch: Stretch) -> Data:
        """Return a copy of the contents of `stretch`."""
        cells = self.cells(stretch)
        return self.values.identity[cells].copy(), self.values.members[cells].copy()

    def store(self, stretch: Stretch, data: Data) -> None:
        cells = self.cells(stretch)
        self.values.identity[cells], self.values.members[cells] = data

    def late_access(self, rank: int, blocks: list[int]) -> ChunkAccess | None:
        """Return an access to `rank`'s memory that may come after the end of its call, or None if there is none."""
        own = slice(self.first_cell[rank], self.first_cell[rank + 1])
        if not blocks:
            return None
        known = self._clocks.clock[blocks].max(axis=0)
        late = self._is_later(known, own)
        if late.any():
            return self._write(own.start + int(np.flatnonzero(late)[0]))
        mine = {self._clocks.proxy.get((rank, port)) for port in range(len(self._plan.ranks[rank].port_peers))}
        for row, reader in enumerate(self._readers[rank]):
            later = np.flatnonzero(self._read[rank][row] > known[HAPPENED, reader])
            if reader not in mine and len(later):
                return self._access(reader, int(self._read[rank][row, later[0]]), own.start + int(later[0]))
        return None

    def name(self, rank: int, buffer: Buffer, chunk: int) -> str:
        """Return the name of a chunk, such as `o[3] of rank 1`. In place, chunks of the output are named as output."""
        layout = self._layouts[rank]
        return cell_name(shape_of(self._plan), rank, layout, layout.base(buffer) + chunk)

    def _write(self, cell: int) -> ChunkAccess:
        return self._access(int(self._writer[cell]), int(self._written[cell]), cell)

    def _access(self, component: int, time: int, cell: int) -> ChunkAccess:
        rank = bisect_right(self.first_cell, cell) - 1
        layout, offset = self._layouts[rank], (cell - self.first_cell[rank]) // self._pieces
        buffer: Buffer = "s" if offset >= layout.scratch_base else "o" if offset >= layout.output_base else "i"
        return ChunkAccess(component, time, rank, buffer, offset - layout.base(buffer))

    def _is_later(self, known: Clock, cells: slice) -> NDArray[np.bool_]:
        """Return bool[cells]: whether the last write to the cell is missing from the clock `known`."""
        writer = self._writer[cells]
        times = np.where(self._happened_is_enough[cells], known[HAPPENED, writer], known[ORDERED, writer])
        return np.asarray(times < self._written[cells])

    def _rows(self, stretch: Stretch) -> slice:
        cells, first = self.cells(stretch), self.first_cell[stretch.rank]
        return slice(cells.start - first, cells.stop - first)


Slot = tuple[int, int, int]
"""(rank, half of its scratch, piece)."""


@dataclass(slots=True)
class Packet:
    """The packet in a slot of scratch.

    call:    number of the call that wrote it
    known:   clock that readers receive, which covers everything that the writer had done
    writer, time: block or proxy that wrote it, and the time of the write
    readers: time of its last read by each block or proxy
    """

    call: int
    identity: int
    members: NDArray[np.uint64]
    known: Clock
    writer: int
    time: int
    readers: dict[int, int] = field(default_factory=dict)


class PacketSlots:
    """The packets in the scratch of all ranks. Each packet holds data and its call number, for which readers wait."""

    def __init__(self, clocks: PlanClocks, double_scratch: bool, pieces: int) -> None:
        self._clocks, self._pieces = clocks, pieces
        self._halves = 2 if double_scratch else 1
        self._slots: dict[Slot, Packet] = {}

    def slots(self, stretch: Stretch, call: int) -> Iterator[Slot]:
        half = call % self._halves
        return ((stretch.rank, half, stretch.first + piece) for piece in range(stretch.count))

    def missing(self, stretch: Stretch, call: int) -> bool:
        """Return whether a packet of `call` is missing from `stretch`."""
        packets = (self._slots.get(slot) for slot in self.slots(stretch, call))
        return any(packet is None or packet.call < call for packet in packets)

    def unknown_writer(self, component: int, stretch: Stretch, call: int) -> ChunkAccess | None:
        """Return the write of a packet in `stretch` that `component` does not know, or None if it knows all of them."""
        known = self._clocks.clock[component, HAPPENED]
        packets = ((slot, self._slots[slot]) for slot in self.slots(stretch, call))
        return next((self._write(slot, packet) for slot, packet in packets if known[packet.writer] < packet.time), None)

    def racing(self, component: int, stretch: Stretch, call: int, write: bool) -> ChunkAccess | None:
        """Return an access that races with a read (or `write`) by `component`, or None if there is none.

        A write races with earlier accesses that may not have ended. A read races with a later call's write.
        """
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
        """Return the contents of the packets in `stretch` and merge their clocks into the clock of `component`."""
        packets = [self._slots[slot] for slot in self.slots(stretch, call)]
        time = self._clocks.time(component)
        known = self._clocks.clock[component, HAPPENED]
        for packet in packets:
            packet.readers[component] = time
            np.maximum(known, packet.known, out=known)
        identity = np.array([packet.identity for packet in packets], dtype=np.int64)
        return identity, np.array([packet.members for packet in packets], dtype=np.uint64)

    def put(self, component: int, stretch: Stretch, call: int, data: Data) -> None:
        """Write `data` as packets of `call`."""
        known, time = self._clocks.packet(component), self._clocks.time(component)
        identity, members = data
        for piece, slot in enumerate(self.slots(stretch, call)):
            self._slots[slot] = Packet(call, int(identity[piece]), members[piece].copy(), known, component, time)
