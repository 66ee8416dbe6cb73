"""Programs as rounds: in each, a rank does local steps, and then sends and receives at once, as batches of torch do.

What a rank does in a round depends on rounds before it alone, so a round of all ranks can be posted as one batch: each
message is sent and received in the same round, those of a pair of ranks in the same order on both sides, and nothing
that a round sends or receives is touched by another of its messages. So it cannot block, whatever is sent first.

A program is executed once, with all its waits and at its queue depth, but without data. That gives an order of its
steps, of which only the dependences of memory are kept: each step is put into the first round that they allow. A
message whose memory is not free yet when it could be sent is received into spare memory, so that it waits for data
alone. There are as many rounds as messages on the longest chain of dependences; none is empty.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout, layout_of
from chorale.synth.programs.program import QUEUE_DEPTH, Instruction, Op, Program, ThreadBlock


class LocalStep(NamedTuple):
    """`chunks` cells from `target` on become those from `left` on, combined with those from `right` on if there are."""

    target: int
    left: int
    right: int | None
    chunks: int


class RankTimes:
    """When cells of a rank are touched: at time 2 k by local steps before round k, at 2 k + 1 by messages of round k.

    Cells from that of `spare` on are spare memory, each piece of it used once; `packed` lets pieces share memory.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._written = [0] * layout.cells
        self._read = [0] * layout.cells
        self._spare: list[tuple[int, int, int]] = []  # time of the first use, cell, count
        self.steps: list[tuple[int, LocalStep]] = []

    def send(self, first: int, count: int) -> int:
        """Return the time at which cells can be sent."""
        cells = slice(first, first + count)
        time = (max(self._written[cells]) + 1) | 1
        self._note_read(cells, time)
        return time

    def spare(self, count: int, time: int) -> int:
        """Return the first of new cells that receive a message at `time`."""
        first = len(self._written)
        self._written += [time] * count
        self._read += [0] * count
        self._spare.append((time, first, count))
        return first

    def receive(self, first: int, count: int, time: int) -> int:
        """Receive a message at `time` that is to lie in cells from `first` on; return the cells to receive it into."""
        cells = slice(first, first + count)
        if max(*self._written[cells], *self._read[cells]) < time:
            self._written[cells] = [time] * count
            return first
        spare = self.spare(count, time)
        self.local(LocalStep(first, spare, None, count))
        return spare

    def local(self, step: LocalStep) -> None:
        """Do a local step as early as possible."""
        operands = [slice(at, at + step.chunks) for at in (step.left, step.right) if at is not None]
        target = slice(step.target, step.target + step.chunks)
        latest = max(*self._read[target], *self._written[target], *(max(self._written[cells]) for cells in operands))
        time = latest + latest % 2
        for cells in operands:
            self._note_read(cells, time)
        self._written[target] = [time] * step.chunks
        self.steps.append((time, step))

    def packed(self) -> tuple[dict[int, int], int]:
        """Return where pieces of spare memory lie by their first cells, and how many spare cells there are."""
        moved, end = {}, self.layout.cells
        free: dict[int, list[tuple[int, int]]] = defaultdict(list)  # by count: time of the last use, cell
        for time, first, count in sorted(self._spare):
            cells = slice(first, first + count)
            last = max(*self._written[cells], *self._read[cells])
            reusable = min(free[count], default=(time, 0))
            if reusable[0] < time:
                free[count].remove(reusable)
                moved[first] = reusable[1]
            else:
                moved[first], end = end, end + count
            free[count].append((last, moved[first]))
        return moved, end - self.layout.cells

    def _note_read(self, cells: slice, time: int) -> None:
        self._read[cells] = [max(time, before) for before in self._read[cells]]


class Transfer(NamedTuple):
    """`chunks` cells from `first` on are sent to `peer`, or received from it."""

    peer: int
    first: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Round:
    """local: to be done in order, before the messages; sends, receives: to be posted at once, those of a peer in
    order."""

    local: tuple[LocalStep, ...]
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class RankRounds:
    """What a rank does: `rounds`, as many on all ranks, and then the local steps `after`.

    Cells are those of `layout`, a chunk each; `spare_cells` more follow it.
    """

    layout: Layout
    spare_cells: int
    rounds: tuple[Round, ...]
    after: tuple[LocalStep, ...]


class ProgramBlocks(InvalidInput):
    """A program never ends. stuck: (rank, block, step) of what cannot begin"""

    stuck: tuple[tuple[int, int, int], ...] = ()


def rounds_of(program: Program) -> tuple[RankRounds, ...]:
    """Return the rounds of every rank; ProgramBlocks, an InvalidInput, for a program that blocks.

    The same for the same program. O(instructions * blocks that depend on one another + chunks moved).
    """
    execution = _Execution(program)
    execution.run()
    return execution.rounds()


class _Message(NamedTuple):
    number: int
    sender: int
    first: int
    chunks: int
    time: int


class _Delivery(NamedTuple):
    """Of a message, as both sides see it."""

    round: int
    sender: int
    receiver: int
    source: int
    target: int
    number: int
    chunks: int


class _Execution:
    """One run of a program, which notes for all steps when they can be done."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._depth = QUEUE_DEPTH[program.protocol]
        self._times = [RankTimes(layout_of(program, rank)) for rank in range(len(program.ranks))]
        self._blocks = {
            (rank, i): block for rank, part in enumerate(program.ranks) for i, block in enumerate(part.blocks)
        }
        self._done = dict.fromkeys(self._blocks, 0)
        self._queues: dict[tuple[int, int | None, int], deque[_Message]] = defaultdict(deque)
        self._deliveries: list[_Delivery] = []
        self._messages = 0

    def run(self) -> None:
        """Execute all blocks; InvalidInput if some cannot end."""
        woken = self._neighbours()
        ready = deque(self._blocks)
        waiting = set(ready)
        while ready:
            at = ready.popleft()
            waiting.discard(at)
            before = self._done[at]
            while self._can_go_on(*at):
                self._do(at[0], self._blocks[at], self._next(*at))
                self._done[at] += 1
            for other in woken[at] if self._done[at] > before else ():
                if other not in waiting:
                    waiting.add(other)
                    ready.append(other)
        stuck = [(*at, done) for at, done in self._done.items() if done < len(self._blocks[at].instructions)]
        if stuck:
            where = "rank {}, block {}, step {}".format(*stuck[0])
            error = ProgramBlocks(
                "a program must come to its end", f"{where} of {self._program.name} cannot begin", "verify it"
            )
            error.stuck = tuple(stuck)
            raise error

    def rounds(self) -> tuple[RankRounds, ...]:
        """Return what was noted, round by round."""
        packed = [times.packed() for times in self._times]
        moved = [places for places, _ in packed]
        joined = _joined(self._program, [times.layout for times in self._times], self._deliveries)
        count = max((delivery.round for delivery in joined), default=-1) + 1
        sends: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        receives: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
        for turn, sender, receiver, source, target, _, chunks in joined:
            sends[sender, turn].append(Transfer(receiver, moved[sender].get(source, source), chunks))
            receives[receiver, turn].append(Transfer(sender, moved[receiver].get(target, target), chunks))
        result = []
        for rank, times in enumerate(self._times):
            local: dict[int, list[LocalStep]] = defaultdict(list)
            for time, step in times.steps:
                local[time // 2].append(_step_at(step, moved[rank]))
            rounds = (
                Round(tuple(local[turn]), tuple(sends[rank, turn]), tuple(receives[rank, turn]))
                for turn in range(count)
            )
            result.append(RankRounds(times.layout, packed[rank][1], tuple(rounds), tuple(local[count])))
        return tuple(result)

    def _neighbours(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Return for each block those that may go on when it did."""
        woken: dict[tuple[int, int], list[tuple[int, int]]] = {at: [] for at in self._blocks}
        ends = {(rank, block.send_peer, block.channel): (rank, i) for (rank, i), block in self._blocks.items()}
        for at, block in self._blocks.items():
            sender = ends.get((block.recv_peer, at[0], block.channel)) if block.recv_peer is not None else None
            if sender is not None:
                woken[sender].append(at)
                woken[at].append(sender)
            for other in {wait.block for step in block.instructions for wait in step.waits}:
                woken[at[0], other].append(at)
        return woken

    def _next(self, rank: int, block: int) -> Instruction:
        return self._blocks[rank, block].instructions[self._done[rank, block]]

    def _can_go_on(self, rank: int, index: int) -> bool:
        block = self._blocks[rank, index]
        if self._done[rank, index] == len(block.instructions):
            return False
        step = self._next(rank, index)
        if any(self._done[rank, wait.block] <= wait.step for wait in step.waits):
            return False
        if step.op.receives and not self._queues[block.recv_peer or 0, rank, block.channel]:
            return False
        return not step.op.sends or len(self._queues[rank, block.send_peer, block.channel]) < self._depth

    def _do(self, rank: int, block: ThreadBlock, step: Instruction) -> None:
        times, op, count = self._times[rank], step.op, step.count
        source = times.layout.cell(step.src) if op.reads_src else -1
        target = times.layout.cell(step.dst) if op.writes_dst else -1
        if op in (Op.COPY, Op.REDUCE):
            left, right = (source, None) if op == Op.COPY else (target, source)
            times.local(LocalStep(target, left, right, count))
        elif op in (Op.RECV, Op.RECV_COPY_SEND):
            message = self._take(rank, block, count)
            self._deliver(message, rank, times.receive(target, count, message.time))
        elif op.receives:
            message = self._take(rank, block, count)
            spare = times.spare(count, message.time)
            self._deliver(message, rank, spare)
            target = spare if op == Op.RECV_REDUCE_SEND else target
            times.local(LocalStep(target, spare, source, count))
        if op.sends:
            self._send(rank, block, source if op == Op.SEND else target, count)

    def _send(self, rank: int, block: ThreadBlock, first: int, count: int) -> None:
        time = self._times[rank].send(first, count)
        message = _Message(self._messages, rank, first, count, time)
        self._queues[rank, block.send_peer, block.channel].append(message)
        self._messages += 1

    def _take(self, rank: int, block: ThreadBlock, count: int) -> _Message:
        message = self._queues[block.recv_peer or 0, rank, block.channel].popleft()
        if message.chunks != count:
            sizes = f"{message.chunks} chunks from rank {message.sender} to rank {rank}, which receives {count}"
            raise InvalidInput("both sides of a message must have as many chunks", sizes, "verify the program")
        return message

    def _deliver(self, message: _Message, rank: int, target: int) -> None:
        number, sender, first, count, time = message
        self._deliveries.append(_Delivery(time // 2, sender, rank, first, target, number, count))


def _joined(program: Program, layouts: Sequence[Layout], deliveries: Sequence[_Delivery]) -> list[_Delivery]:
    """Return the messages of each round and pair in order, those that lie one after the other on both sides as one."""
    joined: list[_Delivery] = []
    for _, group in groupby(sorted(deliveries), key=lambda each: each[:3]):
        last: _Delivery | None = None
        for each in group:
            if last is not None and _follows(program, layouts, last, each):
                joined[-1] = last = last._replace(chunks=last.chunks + each.chunks)
            else:
                joined.append(each)
                last = each
    return joined


def _follows(program: Program, layouts: Sequence[Layout], last: _Delivery, each: _Delivery) -> bool:
    """Return whether `each` lies behind `last` in the same buffers, none of them spare memory."""
    sides = ((last.sender, last.source, each.source), (last.receiver, last.target, each.target))
    return all(
        first + last.chunks == following
        and following < layouts[rank].cells
        and following not in _borders(program, layouts[rank])
        for rank, first, following in sides
    )


def _borders(program: Program, layout: Layout) -> tuple[int, ...]:
    return (layout.scratch_base,) if program.in_place else (layout.output_base, layout.scratch_base)


def _step_at(step: LocalStep, moved: dict[int, int]) -> LocalStep:
    right = None if step.right is None else moved.get(step.right, step.right)
    return LocalStep(moved.get(step.target, step.target), moved.get(step.left, step.left), right, step.chunks)
