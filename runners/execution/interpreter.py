"""Executes the thread blocks of one rank in Python: each block strictly in order, all interleaved as messages arrive.

`Inbox` collects the messages of a connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import DTypeLike

from chorale.runners.api.elements import Vector
from chorale.runners.execution.node_plan import BlockPlan, NodePlan
from chorale.runners.execution.rank_memory import RankMemory
from chorale.synth.programs.program import Instruction, Op


class Inbox:
    """Collects frames into whole messages and calls `arrived` once per message.

    A message that comes while its `r` instruction is waiting is received right where it belongs; any other is buffered.
    """

    def __init__(self, lengths: Sequence[int], dtype: DTypeLike, arrived: Callable[[], None]) -> None:
        self._lengths = deque(lengths)  # elements of the messages still to begin
        self._dtype = dtype
        self._itemsize = np.dtype(dtype).itemsize
        self._arrived = arrived
        self._ready: deque[Vector] = deque()
        self._message: Vector | None = None
        self._rest = memoryview(bytearray())
        self._destination: Vector | None = None

    @property
    def has_message(self) -> bool:
        return bool(self._ready)

    @property
    def next_bytes(self) -> int | None:
        """The length of the next message that has not begun to arrive, None after the last one."""
        return self._lengths[0] * self._itemsize if self._lengths else None

    def set_destination(self, destination: Vector) -> None:
        """Receive the next message into `destination`, if it has not begun to arrive."""
        if self._message is None and not self._ready:
            self._destination = destination

    def take(self) -> Vector:
        """Return the next whole message; its memory belongs to the caller, or is the destination that was set."""
        return self._ready.popleft()

    def buffer(self, length: int) -> memoryview:
        if self._message is None:
            elements = self._lengths.popleft()
            self._message = np.empty(elements, self._dtype) if self._destination is None else self._destination
            self._destination = None
            self._rest = self._message.view(np.uint8).data  # not every element type has a buffer of its own
        part, self._rest = self._rest[:length], self._rest[length:]
        return part

    def filled(self) -> None:
        if self._message is not None and not self._rest:
            self._ready.append(self._message)
            self._message = None
            self._arrived()


Post = Callable[[int, memoryview], None]
"""Hands a message to the link of a connection; nobody else uses its bytes."""


class Interpreter:
    """Runs a plan on `memory`, receiving from `inboxes` (by connection id) and sending with `post`.

    A send is finished when its data has been copied out; links queue without limit, so deadlocks that come
    from full queues do not show here (the program checker and the simulation find those).
    """

    def __init__(self, plan: NodePlan, memory: RankMemory, dtype: str, post: Post) -> None:
        self._blocks = plan.blocks
        self._memory = memory
        self._post = post
        self._finished = [0] * len(plan.blocks)  # instructions finished, per block
        self._waiters: dict[int, list[int]] = {}  # block -> blocks that wait for its progress
        self._runnable: deque[int] = deque()
        self._busy_blocks = sum(1 for block in plan.blocks if block.instructions)
        self.inboxes: dict[int, Inbox] = {}
        for block_id, block in enumerate(plan.blocks):
            if block.receive is not None:
                lengths = [s.count * memory.chunk_elements for s in block.instructions if s.op.receives]
                self.inboxes[block.receive] = Inbox(lengths, dtype, partial(self._runnable.append, block_id))

    @property
    def is_finished(self) -> bool:
        return self._busy_blocks == 0

    def start(self) -> None:
        """Run every block as far as it goes."""
        self._runnable.extend(range(len(self._blocks)))
        self.run()

    def run(self) -> None:
        """Run the blocks that something has happened for."""
        while self._runnable:
            self._run_block(self._runnable.popleft())

    def blocked(self) -> list[tuple[int, int, str]]:
        """Return (block, instruction, what it waits for) of every unfinished block."""
        unfinished = []
        for block_id, block in enumerate(self._blocks):
            number = self._finished[block_id]
            if number < len(block.instructions):
                unfinished.append((block_id, number, self._reason(block, block.instructions[number])))
        return unfinished

    def _run_block(self, block_id: int) -> None:
        block = self._blocks[block_id]
        while self._finished[block_id] < len(block.instructions):
            step = block.instructions[self._finished[block_id]]
            for wait in step.waits:
                if self._finished[wait.block] <= wait.step:
                    self._waiters.setdefault(wait.block, []).append(block_id)
                    return
            if step.op.receives and not self._inbox(block).has_message:
                if step.op is Op.RECV:
                    self._inbox(block).set_destination(self._memory.view(step.dst, step.count))
                return
            self._execute(block, step)
            self._finish_step(block_id)
            if step.op.sends:  # let the other blocks occupy their links before this one sends more
                self._runnable.append(block_id)
                return

    def _finish_step(self, block_id: int) -> None:
        self._finished[block_id] += 1
        if self._finished[block_id] == len(self._blocks[block_id].instructions):
            self._busy_blocks -= 1
        self._runnable.extend(self._waiters.pop(block_id, ()))

    def _execute(self, block: BlockPlan, step: Instruction) -> None:
        view, count = self._memory.view, step.count
        data = self._inbox(block).take() if step.op.receives else view(step.src, count)
        match step.op:
            case Op.SEND:
                data = data.copy()
            case Op.COPY:
                view(step.dst, count)[:] = data
            case Op.REDUCE:
                target = view(step.dst, count)
                np.add(target, data, out=target)
            case Op.RECV_REDUCE_COPY:
                np.add(data, view(step.src, count), out=view(step.dst, count))
            case Op.RECV_REDUCE_SEND | Op.RECV_REDUCE_COPY_SEND:
                np.add(data, view(step.src, count), out=data)
        if step.op in _STORES_MESSAGE:
            _store(data, view(step.dst, count))
        if step.op.sends and block.send is not None:
            self._post(block.send, data.view(np.uint8).data)

    def _inbox(self, block: BlockPlan) -> Inbox:
        return self.inboxes[-1 if block.receive is None else block.receive]

    def _reason(self, block: BlockPlan, step: Instruction) -> str:
        for wait in step.waits:
            if self._finished[wait.block] <= wait.step:
                return f"{step.op} waits for block {wait.block} instruction {wait.step}"
        return f"{step.op} waits for a message"


_STORES_MESSAGE = frozenset({Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY_SEND})


def _store(message: Vector, destination: Vector) -> None:
    """Copy `message` to `destination`, unless it was received there."""
    if not np.may_share_memory(message, destination):
        destination[:] = message
