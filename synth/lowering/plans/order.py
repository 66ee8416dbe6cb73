"""What each thread of each block of a plan knows to have happened: vector clocks.

Component b of a clock counts the stretches between the `nop`s of block b that are over; the further components say of
each rank whether its call has begun. A block knows what all its threads know; a single thread knows, until the next
`nop`, in addition what it waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lowering.plans.plan import Action, ExecutionPlan, Operation

VectorClock = NDArray[np.int32]


class HappensBefore:
    """Signals, semaphores and clocks of a run."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self._plan = plan
        self.owner = [rank for rank, body in enumerate(plan.ranks) for _ in body.blocks]
        self.begun = len(self.owner)  # the component of rank 0
        self.clock: NDArray[np.int32] = np.zeros((self.begun, self.begun + len(plan.ranks)), dtype=np.int32)
        for block, rank in enumerate(self.owner):
            self.clock[block, self.begun + rank] = 1
        self._threads: list[dict[int, VectorClock]] = [{} for _ in self.owner]
        self._first = np.searchsorted(self.owner, np.arange(len(plan.ranks)))
        self._told: dict[tuple[int, int], deque[VectorClock]] = defaultdict(deque)
        self._released: dict[tuple[int, int], deque[VectorClock]] = defaultdict(deque)
        self._ends = [[plan.other_end(rank, n) for n in range(len(body.peers))] for rank, body in enumerate(plan.ranks)]
        for rank, body in enumerate(plan.ranks):
            acquired = Counter(
                number
                for block in body.blocks
                for operation in block.operations
                for number in operation.semaphores
                if operation.action is Action.ACQUIRE
            )
            for number, value in enumerate(body.semaphores):
                nothing = [np.zeros_like(self.clock[0])]
                self._released[rank, number].extend(nothing * min(value, acquired[number]))

    def try_advance(self, block: int, operation: Operation) -> bool:
        """Do what `operation` of `block` does besides moving data; return False if it has to wait."""
        rank = self.owner[block]
        if operation.action is Action.NOP:
            self._join(block)
        elif operation.action is Action.SIGNAL:
            for thread, number in enumerate(self._channels(block, operation)):
                self._told[self._ends[rank][number]].append(self._known(block, thread))
        elif operation.action is Action.RELEASE:
            for thread, number in enumerate(operation.semaphores):
                self._released[rank, number].append(self._known(block, thread))
        elif operation.action is Action.WAIT:
            return self._hear(block, [self._told[rank, number] for number in self._channels(block, operation)])
        elif operation.action is Action.ACQUIRE:
            return self._hear(block, [self._released[rank, number] for number in operation.semaphores])
        return True

    def happened_before(self, block: int, component: NDArray[np.int32], time: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return, for each event, whether all threads of `block` come after it."""
        return np.asarray(self.clock[block, component] >= time)

    def next_time(self, block: int) -> int:
        """Return the time of what `block` does now: it is over with the next nop."""
        return int(self.clock[block, block]) + 1

    def finish(self) -> None:
        """All threads of all blocks come to their ends."""
        for block in range(len(self.owner)):
            self._join(block)

    def final_clock(self, rank: int) -> VectorClock:
        """Return what all blocks of `rank` know together."""
        own = [block for block, owner in enumerate(self.owner) if owner == rank]
        return np.asarray(self.clock[own].max(axis=0))

    def _channels(self, block: int, operation: Operation) -> list[int]:
        rank = self.owner[block]
        channels = self._plan.ranks[rank].blocks[block - int(self._first[rank])].channels
        return [channels[local] for local in operation.channels]

    def _known(self, block: int, thread: int) -> VectorClock:
        """Return what a thread may tell: of the data that its block moves now, nothing."""
        return np.asarray(np.maximum(self.clock[block], self._threads[block].get(thread, 0)))

    def _hear(self, block: int, queues: list[deque[VectorClock]]) -> bool:
        if not all(queues):
            return False
        for thread, queue in enumerate(queues):
            self._threads[block][thread] = np.maximum(self._known(block, thread), queue.popleft())
        return True

    def _join(self, block: int) -> None:
        self.clock[block, block] += 1
        for known in self._threads[block].values():
            np.maximum(self.clock[block], known, out=self.clock[block])
        self._threads[block].clear()
