"""Executes consecutive calls of a plan symbolically and reports what goes wrong.

Instead of data, each chunk holds the set of ranks that contributed to it. Vector clocks (see
`chorale.synth.programs.plans.memory`) check that all accesses to a chunk are ordered.
"""

import numpy as np

from chorale.synth.programs.check_execution import first_excess
from chorale.synth.programs.memory import MAX_REPORTED, ChunkValues, describe, result_violations
from chorale.synth.programs.plans.memory import ChunkAccess, Data, PacketSlots, PlanClocks, PlanMemory, clock_shape
from chorale.synth.programs.plans.moves import MAX_PIECES, Move, MoveMaker, Step, pieces_of_a_chunk, unrolled
from chorale.synth.programs.plans.plan import Action, ExecutionPlan
from chorale.synth.programs.program import Position, ProgramViolation

MAX_MOVES = 2**24
MAX_PACKETS = 2**20
MAX_CELLS = 2**24
MAX_CLOCK_ENTRIES = 2**29
"""Maximum total number of entries in all clocks. An entry has 16 bits, or 32 in long plans."""
STALE = 2**62
"""Identity of a chunk with data from an earlier call."""
_MAX_NAMED = 5


def plan_execution_violations(plan: ExecutionPlan, max_cells: int = MAX_CELLS) -> list[ProgramViolation]:
    """Execute `plan`, whose structure must be valid, and return the violations. Stops at the first violation.

    Signals, semaphores, packets and scratch persist between calls. Therefore two consecutive calls are executed, or
    three if calls alternate between the halves of scratch. Pipelines are executed with one part and with two.

    The result does not depend on the order in which blocks run, because each direction of a channel, each semaphore and
    each packet has only one writer (G. Kahn, 1974). Hence one run finds every deadlock and, with its clocks, every
    race. O(operations * blocks + chunks moved * blocks of a rank).

    Args:
        plan: The plan.
        max_cells: Memory limit, in pieces of chunks on all ranks; a plan that exceeds it violates the rule `size`.
    """
    calls = 3 if plan.settings.double_scratch else 2
    piped = any(operation.body for body in plan.ranks for block in body.blocks for operation in block.operations)
    for parts in (1, 2) if piped else (1,):
        pieces = pieces_of_a_chunk(plan, parts)
        if pieces > MAX_PIECES:
            message = f"parts of a chunk: {pieces} are more than the {MAX_PIECES} that can be checked"
            return [ProgramViolation.at("size", message)]
        steps = [each.operation for body in plan.ranks for block in body.blocks for each in unrolled(block, parts)]
        moved = sum(operand.count for each in steps for operand in (*each.sources, *each.targets))
        packets = sum(each.count for step in steps if step.action.packets for each in (*step.sources, *step.targets))
        cells = sum(plan.layout(rank).cells for rank in range(len(plan.ranks)))
        owners, rows, components = clock_shape(plan)
        excess = first_excess(
            {
                "chunks moved by all operations": (moved * pieces, MAX_MOVES),
                "packets moved by all operations": (packets * pieces, MAX_PACKETS),
                "chunks of memory on all ranks": (cells * pieces, max_cells),
                "clock entries": (owners * rows * components, MAX_CLOCK_ENTRIES),
            }
        )
        found = [ProgramViolation.at("size", excess)] if excess else PlanRun(plan, parts, calls).violations()
        if found:
            return found
    return []


class PlanRun:
    """Executes `calls` calls of `plan`, with pipelines of `parts` parts. Blocks are numbered across all ranks."""

    def __init__(self, plan: ExecutionPlan, parts: int, calls: int) -> None:
        self._plan, self._calls = plan, calls
        self._pieces = pieces_of_a_chunk(plan, parts)
        self._blocks = [(rank, index) for rank, body in enumerate(plan.ranks) for index in range(len(body.blocks))]
        self._steps = [list(unrolled(plan.ranks[rank].blocks[index], parts)) for rank, index in self._blocks]
        self._blocks_of: list[list[int]] = [[] for _ in plan.ranks]
        for number, (rank, _) in enumerate(self._blocks):
            self._blocks_of[rank].append(number)
        # A port counts twice, because its proxy handles puts and signals.
        lengths = [[len(self._steps[number]) for number in numbers] for numbers in self._blocks_of]
        most = (
            2 * sum(each) if body.port_peers else max(each, default=0)
            for each, body in zip(lengths, plan.ranks, strict=True)
        )
        self._clocks = PlanClocks(plan, calls, calls * max(most))
        self._memory = PlanMemory(plan, self._clocks, self._pieces)
        self._packets = PacketSlots(self._clocks, plan.settings.double_scratch, self._pieces)
        self._maker = MoveMaker(plan, self._pieces)
        self._moves: list[dict[int, list[Move]]] = [{} for _ in self._blocks]
        self._at = [0] * len(self._blocks)
        self._call = [0] * len(plan.ranks)

    def violations(self) -> list[ProgramViolation]:
        """Execute the calls and return the violations. The first violation ends the run."""
        for rank in range(len(self._plan.ranks)):
            self._begin(rank, 1)
        moved = True
        while moved:
            moved = False
            for number in range(len(self._blocks)):
                while self._has_more(number):
                    done = self._step(number)
                    if not isinstance(done, bool):
                        return [done]
                    if not done:
                        break
                    moved = True
            for rank, blocks in enumerate(self._blocks_of):
                is_over = all(self._at[number] == len(self._steps[number]) for number in blocks)
                if is_over and self._call[rank] <= self._calls:
                    found = self._end(rank)
                    if found:
                        return found
                    moved = True
        # Report only blocks in the earliest call in which some hang. Blocks in later calls wait for these.
        earliest = min(self._call)
        stuck = [
            number
            for number, (rank, _) in enumerate(self._blocks)
            if self._has_more(number) and self._call[rank] == earliest
        ]
        again = f", in call {earliest}" if earliest > 1 else ""
        found = []
        for number in stuck[:MAX_REPORTED]:
            step = self._steps[number][self._at[number]]
            why = "; ".join(f"it waits for {each}" for each in self._awaited(number, step)[:_MAX_NAMED])
            message = f"{step.operation.action.value} never ends{again}: {why}"
            found.append(ProgramViolation.at("deadlock", message, *self._blocks[number], step.number))
        return found

    def _awaited(self, number: int, step: Step) -> list[str]:
        """Return what the hanging block `number` waits for in its next operation."""
        found, call = [], self._call[self._blocks[number][0]]
        for taken in (each for move in self._moves[number][self._at[number]] if move.waits for each in move.takes):
            if self._packets.missing(taken, call):
                first, last = taken.first // self._pieces, (taken.first + taken.count - 1) // self._pieces
                chunks = f"s[{first}]" if first == last else f"s[{first}..{last}]"
                nobody = ", which nothing writes" if packet_writer(self._plan, taken.rank, taken.first) is None else ""
                found.append(f"packets in {chunks} of rank {taken.rank}{nobody}")
        return found or self._clocks.awaited(number, step)

    def _begin(self, rank: int, call: int) -> None:
        self._call[rank] = call
        if call > self._calls:
            return
        self._clocks.begin(rank, call, self._blocks_of[rank])
        self._memory.begin(rank, call)
        for number in self._blocks_of[rank]:
            self._at[number] = 0

    def _end(self, rank: int) -> list[ProgramViolation]:
        """End the current call of `rank`, check its result, and begin the next call if the result is correct."""
        for number in self._blocks_of[rank]:
            self._clocks.join(number)
        late = self._memory.late_access(rank, self._blocks_of[rank])
        if late is not None:
            what = self._memory.name(late.rank, late.buffer, late.chunk)
            message = f"its call may end before {self._name(late)} has written to {what} or read from it"
            return [ProgramViolation.at("late put", message, rank)]
        memory, pieces = self._memory, self._pieces
        own = slice(memory.first_cell[rank], memory.first_cell[rank + 1])
        identity, members = memory.values.identity[own], memory.values.members[own]
        is_own_call = identity // memory.stride == self._call[rank]
        shown = np.where(identity < 0, identity, np.where(is_own_call, identity % memory.stride, STALE))
        for piece in range(pieces):
            values = ChunkValues(shown[piece::pieces], members[piece::pieces])
            found = result_violations(self._plan, [self._plan.layout(rank)], [0], values, rank)
            if found:
                return found
        self._begin(rank, self._call[rank] + 1)
        return []

    def _has_more(self, number: int) -> bool:
        return self._at[number] < len(self._steps[number]) and self._call[self._blocks[number][0]] <= self._calls

    def _step(self, number: int) -> bool | ProgramViolation:
        """Execute the next operation of block `number`.

        Returns:
            True if the operation was executed, False if it has to wait, or the violation that it causes.
        """
        (rank, index), at, known = self._blocks[number], self._at[number], self._moves[number]
        step = self._steps[number][at]
        if at not in known:
            block, is_move = self._plan.ranks[rank].blocks[index], step.operation.action.moves
            known[at] = self._maker.moves(rank, block, step.operation, step.repeat) if is_move else []
        awaited = (each for move in known[at] if move.waits for each in move.takes)
        lacks_packets = any(self._packets.missing(each, self._call[rank]) for each in awaited)
        if lacks_packets or not self._clocks.try_advance(number, step):
            return False
        for move in known[at]:
            fault = self._move(number, step, move)
            if fault is not None:
                return ProgramViolation.at(*fault, rank, index, step.number)
        self._at[number] += 1
        return True

    def _move(self, number: int, step: Step, move: Move) -> tuple[str, str] | None:
        """Execute one data movement. Return (rule that it breaks, message), or None if it is correct."""
        call, memory, packets = self._call[self._blocks[number][0]], self._memory, self._packets
        doer = self._doer(number, step, move)
        for each in move.reads:
            unwritten = memory.unwritten(each)
            if unwritten is not None:
                return "uninitialised", f"reads {unwritten}, which was never written"
        if any(packets.missing(each, call) for each in move.takes):
            return "uninitialised", "forwards packets that may not have arrived yet"
        taken: list[Data] = []
        other = None
        for each in move.takes:
            # Take packets first, because the clocks in them order this move's other accesses.
            other = packets.racing(doer, each, call, write=False)
            if other is None and not move.waits:
                other = packets.unknown_writer(doer, each, call)
            if other is not None:
                return "race", self._unordered(other, number)
            taken.append(packets.take(doer, each, call))
        for each in move.packets:
            other = other or packets.racing(doer, each, call, write=True)
        other = other or memory.racing_access(doer, move.reads, move.writes, move.switch)
        if other is not None:
            return "race", self._unordered(other, number)
        data = [*map(memory.held, move.reads), *taken]
        total = data[0]
        for added in data[1:]:
            wrong = total[0] != added[0]
            # Without member words, each chunk has exactly one contribution, so nothing may be added.
            wrong |= (total[1] & added[1]).any(axis=1) if total[1].shape[1] else True
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                texts = (
                    describe(ChunkValues(identity % memory.stride, members), at, self._plan)
                    for identity, members in (added, total)
                )
                return "reduction", "adds {} to {}".format(*texts)
            total = total[0], total[1] | added[1]
        for each in move.writes:
            memory.store(each, total)
        for each in move.packets:
            packets.put(doer, each, call, total)
        self._signal(number, step, move)
        return None

    def _doer(self, number: int, step: Step, move: Move) -> int:
        """Return the clock component of the block or, if a port moves the data, of the port's proxy."""
        if move.port is None:
            return number
        if move.takes and move.waits:
            self._clocks.join(number)  # all threads have their packets before the port is instructed
        channel = step.channels[move.port]
        self._clocks.push(number, move.port, channel)
        return self._clocks.proxy[self._blocks[number][0], channel]

    def _signal(self, number: int, step: Step, move: Move) -> None:
        """Execute the rest of a port operation after its put: signal and, for a flush, wait for the end of the put."""
        if move.port is None or not step.operation.action.signals:
            return
        self._clocks.signal(number, step, move.port)
        if step.operation.action is Action.PUT_SIGNAL_FLUSH:
            proxy = self._clocks.proxy[self._blocks[number][0], step.channels[move.port]]
            self._clocks.hear(number, move.port, self._clocks.clock[proxy].copy())

    def _unordered(self, other: ChunkAccess, number: int) -> str:
        """Return the message for a race between the access `other` and a later access by block `number`."""
        what, nothing = self._memory.name(other.rank, other.buffer, other.chunk), "and nothing orders the two"
        if other.component == number:
            position = self._position(other)
            step = "" if position is None else f" at step {position[2]}"
            return f"touches {what}, which other threads of the block touch{step}, without a nop between"
        if other.component >= self._clocks.begun:
            rank = other.component - self._clocks.begun
            return f"touches {what}, which rank {rank} may still need in its previous call, {nothing}"
        return f"touches {what}, which {self._name(other)} touches too, {nothing}"

    def _name(self, other: ChunkAccess) -> str:
        position = self._position(other)
        if position is not None:
            return "rank {}, block {}, step {}".format(*position)
        rank, port = next(end for end, proxy in self._clocks.proxy.items() if proxy == other.component)
        return f"port {port} of rank {rank}"

    def _position(self, other: ChunkAccess) -> Position | None:
        """Return the position of the operation that made an access, or None if a proxy made it."""
        if other.component >= len(self._blocks) or other.time < 1:
            return None
        steps = self._steps[other.component]
        return *self._blocks[other.component], steps[(other.time - 1) % len(steps)].number


def packet_writer(plan: ExecutionPlan, rank: int, piece: int) -> int | None:
    """Return the rank that writes packets to a piece of `rank`'s scratch, or None if no rank does."""
    maker = MoveMaker(plan, pieces_of_a_chunk(plan, 1))
    for other, body in enumerate(plan.ranks):
        for block in body.blocks:
            for step in unrolled(block, 1):
                is_packet = step.operation.action.packets
                for move in maker.moves(other, block, step.operation, step.repeat) if is_packet else ():
                    if any(each.rank == rank and 0 <= piece - each.first < each.count for each in move.packets):
                        return other
    return None
