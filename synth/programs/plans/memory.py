"""Models the memory of all ranks during calls of a plan, and orders the accesses to it with vector clocks.

Clocks are updated by signals, semaphores, barriers and port proxies. Component b of a clock counts the operations of
block b, up to its last `nop`. The next components count the operations of each port's proxy. The last components
count the calls that each rank has begun.

A clock has two rows. ORDERED covers operations that have happened and whose writes are visible. HAPPENED also covers
operations that are known to have happened, but whose writes may not be visible yet, which is all that relaxed signals
and packets guarantee. If a plan has no relaxed operations, its clocks have only one row.

A block's clock contains what all its threads know. Until the next `nop`, a thread may also know about operations for
which only this thread has waited.
"""

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.memory import ChunkValues, cell_name, initial_inputs, shape_of, unwritten_values, words_of
from chorale.synth.programs.plans.moves import Step, Stretch
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind
from chorale.synth.programs.program import Buffer

Clock = NDArray[np.signedinteger[Any]]
"""A vector clock: int[rows, components], with the rows ORDERED and HAPPENED, or only one row for both."""

ORDERED, HAPPENED = 0, -1
MOST_REPEATS = 2
"""Maximum number of parts of a pipeline in the model; see `chorale.synth.programs.plans.moves` for the reason."""
Times = NDArray[np.int32]
Data = tuple[NDArray[np.int64], NDArray[np.uint64]]
"""(identity, members) of pieces of chunks, as in `ChunkValues`."""
Slot = tuple[int, int, int]
"""(rank, index of the half of its scratch, index of the piece)."""


def clock_shape(plan: ExecutionPlan) -> tuple[int, int, int]:
    """Return the shape of the array of all clocks: (clocks, rows, components), with one clock per block or proxy."""
    owners = sum(len(body.blocks) + len(body.port_peers) for body in plan.ranks)
    operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    is_relaxed = any(body.port_peers or body.switches for body in plan.ranks) or any(
        each.action.packets or each.action in (Action.RELAXED_SIGNAL, Action.RELAXED_WAIT) for each in operations
    )
    return owners, 2 if is_relaxed else 1, owners + len(plan.ranks)


class PlanClocks:
    """Vector clocks of all thread blocks and port proxies, and the signals between them.

    latest: upper bound on all clock values
    time:   current time of each block or proxy, counted in operations; an operation of a block ends at the next `nop`
    """

    def __init__(self, plan: ExecutionPlan, calls: int, latest: int) -> None:
        self._plan = plan
        self.owner = [rank for rank, body in enumerate(plan.ranks) for _ in body.blocks]
        ports = [(rank, port) for rank, body in enumerate(plan.ranks) for port in range(len(body.port_peers))]
        self.proxy = {end: len(self.owner) + number for number, end in enumerate(ports)}
        self.begun = len(self.owner) + len(ports)  # component of rank 0
        self.clock: Clock = np.zeros(clock_shape(plan), dtype=np.int16 if latest < 2**15 else np.int32)
        self.time = [0] * self.begun
        self._threads: list[dict[int, Clock]] = [{} for _ in self.owner]
        self._signals: dict[tuple[int, int, Kind], deque[Clock]] = defaultdict(deque)
        self._released: dict[tuple[int, int], deque[Clock]] = defaultdict(deque)
        self._met: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for rank, body in enumerate(plan.ranks):
            acquired = Counter(
                number
                for block in body.blocks
                for operation in block.every_operation()
                for number in operation.semaphores
                if operation.action is Action.ACQUIRE
            )
            for number, value in enumerate(body.semaphores):
                nothing = [np.zeros_like(self.clock[0])]
                self._released[rank, number].extend(nothing * min(value, MOST_REPEATS * calls * acquired[number]))

    def begin(self, rank: int, call: int, blocks: Sequence[int]) -> None:
        """End the previous call on all `blocks` of `rank`, merge the blocks' clocks, and begin `call`.

        A call ends only after the rank's ports have read all data that they were instructed to send.
        """
        for block in blocks:
            self.join(block)
        if not blocks:
            return
        known = self.clock[blocks].max(axis=0)
        known[:, self.begun + rank] = call
        for port in range(len(self._plan.ranks[rank].port_peers)):
            proxy = self.proxy[rank, port]
            known[HAPPENED, proxy] = self.time[proxy]
        self.clock[blocks] = known

    def try_advance(self, block: int, step: Step) -> bool:
        """Execute `step` of `block`, but do not move its data. Return False if the block has to wait."""
        operation = step.operation
        action, rank = operation.action, self.owner[block]
        if action is Action.NOP:
            self.join(block)
        elif action is Action.BARRIER:
            if not self._meet(block, *(operation.barrier or (0, 1))):
                return False
        elif action in (Action.SIGNAL, Action.RELAXED_SIGNAL):
            for thread in range(len(step.channels)):
                self.signal(block, step, thread)
        elif action is Action.RELEASE:
            for thread, number in enumerate(operation.semaphores):
                self._released[rank, number].append(self._knowledge(block, thread))
        elif action.waits or action is Action.ACQUIRE:
            queues = [self._released[rank, number] for number in operation.semaphores]
            if action.waits:
                queues = [self._signals[rank, number, operation.kind] for number in step.channels]
            if not all(queues):
                return False
            for thread, queue in enumerate(queues):
                news = queue.popleft()
                if action is Action.RELAXED_WAIT:
                    news = news.copy()
                    news[ORDERED] = 0
                self.hear(block, thread, news)
        self.time[block] += 1
        return True

    def awaited(self, block: int, step: Step) -> list[str]:
        """Return the names of the signals, semaphores or barrier for which `step` of `block` has to wait."""
        rank, kind = self.owner[block], step.operation.kind
        if step.operation.action is Action.BARRIER:
            return [f"other blocks at barrier {(step.operation.barrier or (0, 1))[0]}"]
        if step.operation.action is Action.ACQUIRE:
            return [f"semaphore {number}" for number in step.operation.semaphores if not self._released[rank, number]]
        return [
            f"a signal of rank {self._plan.other_end(rank, number, kind)[0]} on {kind} channel {number}"
            for number in step.channels
            if not self._signals[rank, number, kind]
        ]

    def signal(self, block: int, step: Step, thread: int) -> None:
        """Let `thread` of `block` signal: send its clock or, for a port, the proxy's clock to the channel's peer."""
        rank, number, kind = self.owner[block], step.channels[thread], step.operation.kind
        news = self.push(block, thread, number) if kind == "port" else self._knowledge(block, thread)
        if kind != "port" and step.operation.action is Action.RELAXED_SIGNAL:
            news[ORDERED] = 0
        peer, other = self._plan.other_end(rank, number, kind)
        self._signals[peer, other, kind].append(news)

    def push(self, block: int, thread: int, number: int) -> Clock:
        """Let the proxy of port `number` do one operation, ordered after all that `thread` of `block` knows of.

        Returns the proxy's new clock.
        """
        proxy = self.proxy[self.owner[block], number]
        clock = self.clock[proxy]
        np.maximum(clock, self._knowledge(block, thread), out=clock)
        self.time[proxy] += 1
        clock[:, proxy] = self.time[proxy]
        return np.asarray(clock.copy())

    def hear(self, block: int, thread: int, news: Clock) -> None:
        """Merge the received clock `news` into the clock of `thread` in `block`. Callers must not modify `news`."""
        held = self._threads[block].get(thread)
        self._threads[block][thread] = news if held is None else np.maximum(held, news)

    def packet(self, component: int) -> Clock:
        """Return the clock of a packet that `component` writes now. This clock covers all that `component` has done."""
        news = self.clock[component, HAPPENED].copy()
        news[component] = self.time[component]
        return np.asarray(news)

    def join(self, block: int) -> None:
        """Let all threads of `block` wait for each other, so that each thread knows what any thread knew."""
        self.clock[block, :, block] = self.time[block]
        for known in self._threads[block].values():
            np.maximum(self.clock[block], known, out=self.clock[block])
        self._threads[block].clear()

    def _knowledge(self, block: int, thread: int) -> Clock:
        """Return the clock that `thread` sends with its signals. It excludes the current data movement of the block."""
        heard = self._threads[block].get(thread)
        return np.asarray(self.clock[block].copy() if heard is None else np.maximum(self.clock[block], heard))

    def _meet(self, block: int, number: int, blocks: int) -> bool:
        """Let `block` arrive at barrier `number`. Return whether all `blocks` blocks have arrived."""
        met = self._met[self.owner[block], number]
        if met.get(block) == 1:
            del met[block]  # the last block to arrive has released it
            return True
        met.setdefault(block, 0)
        if len(met) < blocks or any(met.values()):
            return False
        for each in met:
            self.join(each)
        self.clock[list(met)] = self.clock[list(met)].max(axis=0)
        met.update(dict.fromkeys(met, 1))
        del met[block]
        return True


class ChunkAccess(NamedTuple):
    """An access to a piece of a chunk by `component` (a block, a proxy or the beginning of a call) at `time`."""

    component: int
    time: int
    rank: int
    buffer: Buffer
    chunk: int


class PlanMemory:
    """The memory of all ranks, and the accesses to it. There is one entry per piece of a chunk, rank by rank.

    values:     contents of each piece. The identities of input data in call n are numbers from n * `stride` on.
    first_cell: first piece of each rank, followed by the total number of pieces

    The beginning of a call counts as the rank's write to its input and output, so another rank may access them only
    when it knows that the call has begun. A rank may overwrite a piece when it knows that all reads of it are over. A
    rank may access data that another rank wrote only after a synchronization that makes the write visible. If a switch
    wrote the data, it is enough to know that the write has finished.
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
        """Begin `call` of `rank`: write the rank's input, and mark the rank's output as undefined."""
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

    def unwritten(self, stretch: Stretch) -> str | None:
        """Return the name of the first chunk in `stretch` that was never written, or None if there is none."""
        cells = self.cells(stretch)
        missing = self.values.identity[cells] < 0
        if not missing.any():
            return None
        where = self._access(0, 0, cells.start + int(missing.argmax()))
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
        time = self._clocks.time[component]
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
        """Return an access to `rank`'s memory that may happen after the rank's call has ended, or None."""
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
        """Return the name of a chunk, such as `o[3] of rank 1`. Chunks in both input and output get the output name."""
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
        """Return bool[cells]: whether the clock `known` does not cover the last write to a cell."""
        writer = self._writer[cells]
        times = np.where(self._happened_is_enough[cells], known[HAPPENED, writer], known[ORDERED, writer])
        return np.asarray(times < self._written[cells])

    def _rows(self, stretch: Stretch) -> slice:
        cells, first = self.cells(stretch), self.first_cell[stretch.rank]
        return slice(cells.start - first, cells.stop - first)


@dataclass(slots=True)
class Packet:
    """A packet (data and a flag) in scratch memory.

    call:    number of the call in which the packet was written
    identity, members: contents, as in `ChunkValues`
    known:   clock that readers receive; this clock covers everything that the writer had done
    writer, time: block or proxy that wrote the packet, and the time of the write
    readers: for each block or proxy that has read the packet, the time of the last read
    """

    call: int
    identity: int
    members: NDArray[np.uint64]
    known: Clock
    writer: int
    time: int
    readers: dict[int, int] = field(default_factory=dict)


class PacketSlots:
    """The packets in the scratch of all ranks. Readers of a packet wait for the call number that it holds."""

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
        """Return a packet write in `stretch` that the clock of `component` does not cover, or None if there is none."""
        known = self._clocks.clock[component, HAPPENED]
        packets = ((slot, self._slots[slot]) for slot in self.slots(stretch, call))
        return next((self._write(slot, packet) for slot, packet in packets if known[packet.writer] < packet.time), None)

    def racing(self, component: int, stretch: Stretch, call: int, write: bool) -> ChunkAccess | None:
        """Return an access that races with a new read (or, if `write` is set, a new write) by `component`, or None.

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
        time = self._clocks.time[component]
        known = self._clocks.clock[component, HAPPENED]
        for packet in packets:
            packet.readers[component] = time
            np.maximum(known, packet.known, out=known)
        identity = np.array([packet.identity for packet in packets], dtype=np.int64)
        return identity, np.array([packet.members for packet in packets], dtype=np.uint64)

    def put(self, component: int, stretch: Stretch, call: int, data: Data) -> None:
        known, time = self._clocks.packet(component), self._clocks.time[component]
        identity, members = data
        for piece, slot in enumerate(self.slots(stretch, call)):
            self._slots[slot] = Packet(call, int(identity[piece]), members[piece].copy(), known, component, time)
