"""Finds valid orders of instructions, and converts programs into rounds.

In a round, a rank does local steps, then posts all its sends and receives as a batch, which PyTorch can execute. A
rank's work in a round depends only on earlier rounds, so it can post all messages of a round at the same time. Each
message is sent and received in the same round, and both ranks of a pair post their messages in the same order. No
message uses memory that another message in the round sends or receives. Therefore a round cannot deadlock, no matter
which message is sent first.

To find the rounds, the program is executed once without data, obeying its waits and queue depth. The resulting order
shows which steps depend on each other through memory. Each step is put into the earliest round that these dependences
allow. If the target memory is still in use when a message could be sent, the message is received into spare memory
instead. Messages therefore only wait for their data. The number of rounds is the number of messages on the longest
chain of dependences; no round is empty.
"""

import math
from collections import defaultdict, deque
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from chorale.synth.errors import InvalidInput
from chorale.synth.programs.memory import Layout, layout_of
from chorale.synth.programs.program import NO_PEER, QUEUE_DEPTH, Op, Position, Program, ThreadBlock

Connection = tuple[int, int, int]
"""(sender, receiver, channel)."""
Order = list[tuple[Position, Position | None]]
"""Instructions in a valid order, each with the send whose message it receives (None if it receives nothing)."""


def ends_of_block(rank: int, block: ThreadBlock) -> tuple[Connection, Connection]:
    """Return (connection from which `block` of `rank` receives, connection to which it sends).

    If the block does not receive or does not send, the peer in that connection is NO_PEER.
    """
    source, target = (NO_PEER if peer is None else peer for peer in (block.recv_peer, block.send_peer))
    return (source, rank, block.channel), (rank, target, block.channel)


def execution_order(program: Program, depth: float = math.inf) -> tuple[Order, list[Position]]:
    """Return (instructions in a valid order, instructions at which blocks hang if the program deadlocks).

    Identical programs give identical orders. O(instructions * blocks that wait for one another).

    Args:
        program: A program whose structure is valid.
        depth: Number of messages that a connection can buffer before its sender has to wait.
    """
    blocks = {
        (rank, index): block for rank, body in enumerate(program.ranks) for index, block in enumerate(body.blocks)
    }
    senders = {ends_of_block(at[0], block)[1]: at for at, block in blocks.items()}
    woken: dict[tuple[int, int], list[tuple[int, int]]] = {
        at: [] for at in blocks
    }  # blocks to check again after this block makes progress
    for at, block in blocks.items():
        sender = senders.get(ends_of_block(at[0], block)[0])
        if sender is not None:
            woken[sender].append(at)
            woken[at].append(sender)
        for other in {wait.block for item in block.instructions for wait in item.waits}:
            woken[at[0], other].append(at)
    order: Order = []
    done = dict.fromkeys(blocks, 0)
    under_way: dict[Connection, deque[Position]] = defaultdict(deque)
    ready, waiting = deque(blocks), set(blocks)
    while ready:
        at = ready.popleft()
        waiting.discard(at)
        rank, block, before = at[0], blocks[at], done[at]
        incoming, outgoing = ends_of_block(rank, block)
        while done[at] < len(block.instructions):
            item = block.instructions[done[at]]
            if (
                any(done[rank, wait.block] <= wait.step for wait in item.waits)
                or (item.op.receives and not under_way[incoming])
                or (item.op.sends and len(under_way[outgoing]) >= depth)
            ):
                break
            order.append(((*at, done[at]), under_way[incoming].popleft() if item.op.receives else None))
            if item.op.sends:
                under_way[outgoing].append((*at, done[at]))
            done[at] += 1
        for other_block in woken[at] if done[at] > before else ():
            if other_block not in waiting:
                waiting.add(other_block)
                ready.append(other_block)
    return order, [(*at, step) for at, step in done.items() if step < len(blocks[at].instructions)]


class LocalStep(NamedTuple):
    """Writes `chunks` cells to `target`: a copy of `left` or, if `right` is not None, the sum of `left` and `right`."""

    target: int
    left: int
    right: int | None
    chunks: int


class Transfer(NamedTuple):
    """A message to or from `peer`, in the `chunks` cells that begin at cell `first`."""

    peer: int
    first: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Round:
    """The work of one rank in one round.

    local:           steps to be done in order, before the messages
    sends, receives: messages to post at the same time; messages with the same peer stay in this order
    """

    local: tuple[LocalStep, ...]
    sends: tuple[Transfer, ...]
    receives: tuple[Transfer, ...]


@dataclass(frozen=True, slots=True)
class RankRounds:
    """The work of one rank: `rounds`, followed by the local steps `after`. All ranks have the same number of rounds.

    A cell holds one chunk. The cells of `layout` are followed by `spare_cells` spare cells.
    """

    layout: Layout
    spare_cells: int
    rounds: tuple[Round, ...]
    after: tuple[LocalStep, ...]


class ProgramBlocks(InvalidInput):
    """Raised for a program that deadlocks.

    stuck: the instructions that cannot begin
    """

    stuck: tuple[Position, ...] = ()


class _RankTimes:
    """Records when a rank uses its cells. Time 2k means the local steps before round k, time 2k + 1 its messages.

    Cells after those of `layout` are spare memory. Each piece of spare memory is used only once here; `packed` then
    lets pieces with disjoint times share memory.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._written = [0] * layout.cells
        self._read = [0] * layout.cells
        self._spare: list[tuple[int, int, int]] = []  # time of the first use, cell, count
        self.steps: list[tuple[int, LocalStep]] = []

    def send(self, first: int, count: int) -> int:
        """Find and record the earliest time at which the `count` cells from `first` on can be sent."""
        cells = slice(first, first + count)
        time = (max(self._written[cells]) + 1) | 1
        self._note_read(cells, time)
        return time

    def spare(self, count: int, time: int) -> int:
        """Allocate `count` spare cells for a message received at `time` and return the first cell."""
        first = len(self._written)
        self._written += [time] * count
        self._read += [0] * count
        self._spare.append((time, first, count))
        return first

    def receive(self, first: int, count: int, time: int) -> int:
        """Record that a message of `count` cells arrives at `time`, for the cells from `first` on.

        Returns:
            The first cell into which to receive it: `first`, or spare memory if the cells at `first` are still in use.
        """
        cells = slice(first, first + count)
        if max(*self._written[cells], *self._read[cells]) < time:
            self._written[cells] = [time] * count
            return first
        spare = self.spare(count, time)
        self.local(LocalStep(first, spare, None, count))
        return spare

    def local(self, step: LocalStep) -> None:
        """Schedule a local step at the earliest possible time."""
        operands = [slice(at, at + step.chunks) for at in (step.left, step.right) if at is not None]
        target = slice(step.target, step.target + step.chunks)
        latest = max(*self._read[target], *self._written[target], *(max(self._written[cells]) for cells in operands))
        time = latest + latest % 2
        for cells in operands:
            self._note_read(cells, time)
        self._written[target] = [time] * step.chunks
        self.steps.append((time, step))

    def packed(self) -> tuple[dict[int, int], int]:
        """Let pieces of spare memory share cells.

        Returns (map from old first cell to new first cell, number of spare cells needed).
        """
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
    """A message, with its first cell at the sender (`source`) and at the receiver (`target`)."""

    round: int
    sender: int
    receiver: int
    source: int
    target: int
    number: int
    chunks: int


def rounds_of(program: Program) -> tuple[RankRounds, ...]:
    """Return the rounds of every rank. Identical programs give identical rounds.

    O(instructions * blocks that wait for one another + chunks moved).

    Raises:
        ProgramBlocks: The program deadlocks.
        InvalidInput: A receive expects a different number of chunks than its message has.
    """
    order, stuck = execution_order(program, QUEUE_DEPTH[program.protocol])
    if stuck:
        where = f"rank {stuck[0][0]}, block {stuck[0][1]}, step {stuck[0][2]} of {program.name} cannot begin"
        error = ProgramBlocks("a program must not deadlock", where, "verify it")
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


def _deliveries(program: Program, order: Order, times: list[_RankTimes]) -> list[_Delivery]:
    """Execute the instructions in `order`, record memory accesses in `times`, and return all messages."""
    found: list[_Delivery] = []
    sent: dict[Position, _Message] = {}
    messages = 0
    for (rank, index, number), sender in order:
        own, step = times[rank], program.ranks[rank].blocks[index].instructions[number]
        op, count = step.op, step.count
        source = own.layout.cell(step.src) if op.reads_src else -1
        target = own.layout.cell(step.dst) if op.writes_dst else -1
        if sender is not None:
            message = sent.pop(sender)
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
            sent[rank, index, number] = _Message(messages, rank, first, count, own.send(first, count))
            messages += 1
    return found


def _joined(program: Program, times: list[_RankTimes], deliveries: list[_Delivery]) -> list[_Delivery]:
    """Sort the messages by round and pair of ranks, and merge messages that are adjacent in memory at both ends."""

    def follows(last: _Delivery, each: _Delivery) -> bool:
        """Return whether `each` directly follows `last` at both ends, in the same buffer and not in spare memory."""
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
