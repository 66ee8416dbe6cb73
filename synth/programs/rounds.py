"""Programs as rounds: in each round a rank does local steps, then posts all its sends and receives as one batch.

PyTorch executes such batches. What a rank does in a round depends only on earlier rounds, so all ranks can post a round
at once: each message is sent and received in the same round, the messages of a pair of ranks have the same order on
both sides, and no message touches memory that another message of the round sends or receives. So a round cannot block,
whatever is sent first.

The program is executed once without data, with all its waits and at its queue depth. This gives an order of its steps,
of which only the dependences of memory are kept: each step is put into the first round that they allow. A message whose
memory is still in use when it could be sent is received into spare memory, so that it waits for data alone. There are
as many rounds as messages on the longest chain of dependences; none is empty.
"""

from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout, layout_of
from chorale.synth.programs.plain_execution import Connection, ends_of_block, execution_order
from chorale.synth.programs.program import QUEUE_DEPTH, Op, Position, Program


class LocalStep(NamedTuple):
    """Store `chunks` cells at `target`: those at `left`, added to those at `right` unless `right` is None."""

    target: int
    left: int
    right: int | None
    chunks: int


class Transfer(NamedTuple):
    """`chunks` cells from `first` on are sent to `peer`, or received from it."""

    peer: int
    first: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a rank.

    local:           steps to be done in order, before the messages
    sends, receives: messages to be posted at the same time, those of a peer in order
    """

    local: tuple[LocalStep, ...]
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class RankRounds:
    """The work of a rank: `rounds`, as many on all ranks, and then the local steps `after`.

    Cells are those of `layout`, one chunk each, followed by `spare_cells` more.
    """

    layout: Layout
    spare_cells: int
    rounds: tuple[Round, ...]
    after: tuple[LocalStep, ...]


class ProgramBlocks(InvalidInput):
    """Raised for a program that deadlocks. stuck: the instructions that cannot begin"""

    stuck: tuple[Position, ...] = ()


class _RankTimes:
    """When the cells of a rank are touched: at time 2k by local steps before round k, at 2k + 1 by messages of round k.

    Cells after those of `layout` are spare memory. Each piece of it is used once, so that `packed` lets pieces share
    memory.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._written = [0] * layout.cells
        self._read = [0] * layout.cells
        self._spare: list[tuple[int, int, int]] = []  # time of the first use, cell, count
        self.steps: list[tuple[int, LocalStep]] = []

    def send(self, first: int, count: int) -> int:
        """Return the earliest time at which `count` cells from `first` on can be sent."""
        cells = slice(first, first + count)
        time = (max(self._written[cells]) + 1) | 1
        self._note_read(cells, time)
        return time

    def spare(self, count: int, time: int) -> int:
        """Return the first of `count` new cells that receive a message at `time`."""
        first = len(self._written)
        self._written += [time] * count
        self._read += [0] * count
        self._spare.append((time, first, count))
        return first

    def receive(self, first: int, count: int, time: int) -> int:
        """Store a message that arrives at `time` in cells from `first` on; return the cells to receive it into."""
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
        """Return the place of each piece of spare memory, by its first cell, and the number of spare cells needed."""
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


class _Message(NamedTuple):
    number: int
    sender: int
    first: int
    chunks: int
    time: int


class _Delivery(NamedTuple):
    """A message with its cells at both ends."""

    round: int
    sender: int
    receiver: int
    source: int
    target: int
    number: int
    chunks: int


def rounds_of(program: Program) -> tuple[RankRounds, ...]:
    """Return the rounds of every rank; equal programs give equal rounds.

    O(instructions * blocks that wait for one another + chunks moved).

    Raises:
        ProgramBlocks: The program deadlocks.
        InvalidInput: Both ends of a message differ in their number of chunks.
    """
    order, stuck = execution_order(program, QUEUE_DEPTH[program.protocol])
    if stuck:
        where = f"rank {stuck[0][0]}, block {stuck[0][1]}, step {stuck[0][2]} of {program.name} cannot begin"
        error = ProgramBlocks("a program must come to its end", where, "verify it")
        error.stuck = tuple(stuck)
        raise error
    times = [_RankTimes(layout_of(program, rank)) for rank in range(len(program.ranks))]
    deliveries = _deliveries(program, order, times)
    packed = [each.packed() for each in times]
    count = max((delivery.round for delivery in deliveries), default=-1) + 1
    sends: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    receives: dict[tuple[int, int], list[Transfer]] = defaultdict(list)
    for turn, sender, receiver, source, target, _, chunks in _joined(program, times, deliveries):
        sends[sender, turn].append(Transfer(receiver, packed[sender][0].get(source, source), chunks))
        receives[receiver, turn].append(Transfer(sender, packed[receiver][0].get(target, target), chunks))
    result = []
    for rank, (own, (moved, spare)) in enumerate(zip(times, packed, strict=True)):
        local: dict[int, list[LocalStep]] = defaultdict(list)
        for time, step in own.steps:
            right = None if step.right is None else moved.get(step.right, step.right)
            places = moved.get(step.target, step.target), moved.get(step.left, step.left)
            local[time // 2].append(LocalStep(*places, right, step.chunks))
        rounds = tuple(
            Round(tuple(local[turn]), tuple(sends[rank, turn]), tuple(receives[rank, turn])) for turn in range(count)
        )
        result.append(RankRounds(own.layout, spare, rounds, tuple(local[count])))
    return tuple(result)


def _deliveries(program: Program, order: list[Position], times: list[_RankTimes]) -> list[_Delivery]:
    """Execute the instructions in `order`, which fills in `times`; return all messages."""
    found: list[_Delivery] = []
    queues: dict[Connection, deque[_Message]] = defaultdict(deque)
    messages = 0
    for rank, index, number in order:
        block, own = program.ranks[rank].blocks[index], times[rank]
        step = block.instructions[number]
        op, count = step.op, step.count
        incoming, outgoing = ends_of_block(rank, block)
        source = own.layout.cell(step.src) if op.reads_src else -1
        target = own.layout.cell(step.dst) if op.writes_dst else -1
        if op.receives:
            message = queues[incoming].popleft()
            if message.chunks != count:
                sizes = f"{message.chunks} chunks from rank {message.sender} to rank {rank}, which receives {count}"
                raise InvalidInput(
                    "the two sides of a message have different numbers of chunks: {}", sizes, "verify the program"
                )
            if op.reads_src:
                place = own.spare(count, message.time)
                target = place if op == Op.RECV_REDUCE_SEND else target
                own.local(LocalStep(target, place, source, count))
            else:
                place = own.receive(target, count, message.time)
            ends = message.sender, rank, message.first, place
            found.append(_Delivery(message.time // 2, *ends, message.number, count))
        elif op in (Op.COPY, Op.REDUCE):
            left, right = (source, None) if op == Op.COPY else (target, source)
            own.local(LocalStep(target, left, right, count))
        if op.sends:
            first = source if op == Op.SEND else target
            queues[outgoing].append(_Message(messages, rank, first, count, own.send(first, count)))
            messages += 1
    return found


def _joined(program: Program, times: list[_RankTimes], deliveries: list[_Delivery]) -> list[_Delivery]:
    """Return the messages of each round and pair in order; messages that follow each other in memory become one."""

    def follows(last: _Delivery, each: _Delivery) -> bool:
        """Return whether `each` lies behind `last` in the same buffers, none of them spare memory."""
        sides = ((last.sender, last.source, each.source), (last.receiver, last.target, each.target))
        layouts = [times[rank].layout for rank, _, _ in sides]
        return all(
            first + last.chunks == following
            and following < layout.cells
            and following != layout.scratch_base
            and (program.in_place or following != layout.output_base)
            for layout, (_, first, following) in zip(layouts, sides, strict=True)
        )

    joined: list[_Delivery] = []
    for _, group in groupby(sorted(deliveries), key=lambda each: each[:3]):
        first, *others = group
        joined.append(first)
        for each in others:
            if follows(joined[-1], each):
                joined[-1] = joined[-1]._replace(chunks=joined[-1].chunks + each.chunks)
            else:
                joined.append(each)
    return joined
