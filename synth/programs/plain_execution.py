"""Finds a valid order for a program's instructions and executes them in this order in plain Python.

A program without races gives the same result in every valid order (see `chorale.synth.programs.check_execution`).
"""

import math
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Generic, TypeVar

from chorale.synth.programs.memory import layout_of
from chorale.synth.programs.program import NO_PEER, Op, Position, Program, ThreadBlock

Value = TypeVar("Value")
Connection = tuple[int, int, int]
"""(sender, receiver, channel)."""


def ends_of_block(rank: int, block: ThreadBlock) -> tuple[Connection, Connection]:
    """Return (connection from which `block` of `rank` receives, connection to which it sends).

    If the block does not receive or does not send, the peer in that connection is NO_PEER.
    """
    source, target = (NO_PEER if peer is None else peer for peer in (block.recv_peer, block.send_peer))
    return (source, rank, block.channel), (rank, target, block.channel)


def execution_order(program: Program, depth: float = math.inf) -> tuple[list[Position], list[Position]]:
    """Return (valid order of the instructions, instructions at which blocks hang in a deadlock).

    Identical programs give identical orders. O(instructions * blocks that wait for one another).

    Args:
        program: A structurally sound program.
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
    order: list[Position] = []
    done = dict.fromkeys(blocks, 0)
    under_way: Counter[Connection] = Counter()
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
                or (item.op.sends and under_way[outgoing] >= depth)
            ):
                break
            order.append((*at, done[at]))
            done[at] += 1
            under_way[incoming] -= item.op.receives
            under_way[outgoing] += item.op.sends
        for other_block in woken[at] if done[at] > before else ():
            if other_block not in waiting:
                waiting.add(other_block)
                ready.append(other_block)
    return order, [(*at, step) for at, step in done.items() if step < len(blocks[at].instructions)]


class PlainExecution(ABC, Generic[Value]):
    """Executes a structurally sound program on values of any type. Connections hold any number of messages.

    memory: cells of all ranks; the cells of rank r begin at `first_cell[r]`. None stands for a chunk that was never
            written, and for a sum that contains such a chunk.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.layouts = [layout_of(program, rank) for rank in range(len(program.ranks))]
        self.first_cell = [0, *accumulate(layout.cells for layout in self.layouts)]
        self.memory: list[Value | None] = [None] * self.first_cell[-1]

    @abstractmethod
    def sum_of(self, value: Value, other: Value) -> Value:
        """Return the sum of two values."""

    def output(self, rank: int, chunks: int) -> Sequence[Value | None]:
        """Return the first `chunks` chunks of `rank`'s output."""
        first = self.first_cell[rank] + self.layouts[rank].output_base
        return self.memory[first : first + chunks]

    def run(self) -> bool:
        """Execute the program; return True if all blocks finish, False on a deadlock. O(chunks moved)."""
        order, stuck = execution_order(self.program)
        messages: dict[Connection, deque[list[Value | None]]] = defaultdict(deque)
        for rank, index, step in order:
            block, layout, first = self.program.ranks[rank].blocks[index], self.layouts[rank], self.first_cell[rank]
            item = block.instructions[step]
            incoming, outgoing = ends_of_block(rank, block)
            operands: list[list[Value | None]] = []
            if item.op.receives:
                operands.append(messages[incoming].popleft())
            for place, is_read in ((item.src, item.op.reads_src), (item.dst, item.op is Op.REDUCE)):
                if is_read:
                    cell = first + layout.cell(place)
                    operands.append(self.memory[cell : cell + item.count])
            values = operands[0]
            for others in operands[1:]:
                pairs = zip(values, others, strict=True)
                values = [None if a is None or b is None else self.sum_of(a, b) for a, b in pairs]
            if item.op.writes_dst:
                target = first + layout.cell(item.dst)
                self.memory[target : target + len(values)] = values
            if item.op.sends:
                messages[outgoing].append(values)
        return not stuck
