"""What blocks know of each other in runs of a plan: clocks with two rows, signals, semaphores, barriers and proxies.

Component b of a clock counts the operations of block b, up to the last of its `nop`s; further components count those of
the proxy behind each port, and say of each rank which of its calls has begun. The first row, ORDERED, is
what happened and can be seen; the second, HAPPENED, also what is known to have happened without an order of memory: a
relaxed signal, or a packet, tells no more than that. A block knows what all its threads know; a single thread also
knows, until the next `nop`, what it waited for.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind, Operation

Clock = NDArray[np.int32]
"""int32[2, components]"""

ORDERED, HAPPENED = 0, 1


class PlanClocks:
    """Clocks of all blocks and proxies, and what is on its way between them."""

    def __init__(self, plan: ExecutionPlan, calls: int) -> None:
        self._plan = plan
        self.owner = [rank for rank, body in enumerate(plan.ranks) for _ in body.blocks]
        ports = [(rank, port) for rank, body in enumerate(plan.ranks) for port in range(len(body.port_peers))]
        self.proxy = {end: len(self.owner) + number for number, end in enumerate(ports)}
        self.begun = len(self.owner) + len(ports)  # the component of rank 0
        self.clock: NDArray[np.int32] = np.zeros((self.begun, 2, self.begun + len(plan.ranks)), dtype=np.int32)
        self._time = [0] * self.begun
        self._first = np.searchsorted(self.owner, np.arange(len(plan.ranks)))
        self._threads: list[dict[int, Clock]] = [{} for _ in self.owner]
        self._signals: dict[tuple[int, int, Kind], deque[Clock]] = defaultdict(deque)
        self._released: dict[tuple[int, int], deque[Clock]] = defaultdict(deque)
        self._met: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self._fill_semaphores(calls)

    def _fill_semaphores(self, calls: int) -> None:
        for rank, body in enumerate(self._plan.ranks):
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

    def begin(self, rank: int, call: int) -> None:
        """All blocks of `rank` end their call, if there was one, know what they know together, and begin `call`. A call
        ends when the ports of the rank have read what they were given."""
        blocks = [block for block, owner in enumerate(self.owner) if owner == rank]
        for block in blocks:
            self.join(block)
        if not blocks:
            return
        known = self.clock[blocks].max(axis=0)
        known[:, self.begun + rank] = call
        for port in range(len(self._plan.ranks[rank].port_peers)):
            proxy = self.proxy[rank, port]
            known[HAPPENED, proxy] = self._time[proxy]
        self.clock[blocks] = known

    def try_advance(self, block: int, operation: Operation) -> bool:
        """Do what `operation` of `block` does besides moving data; return False if it has to wait."""
        action, rank = operation.action, self.owner[block]
        if action is Action.NOP:
            self.join(block)
        elif action is Action.BARRIER:
            return self._meet(block, operation)
        elif action in (Action.SIGNAL, Action.RELAXED_SIGNAL):
            for thread in range(len(operation.channels)):
                self.signal(block, operation, thread)
        elif action is Action.RELEASE:
            for thread, number in enumerate(operation.semaphores):
                self._released[rank, number].append(self.knowledge(block, thread))
        elif action.waits:
            numbers = self.channels(block, operation)
            return self._receive(block, [self._signals[rank, n, operation.kind] for n in numbers], action)
        elif action is Action.ACQUIRE:
            return self._receive(block, [self._released[rank, number] for number in operation.semaphores], action)
        return True

    def may_advance(self, block: int, operation: Operation) -> bool:
        """Return whether `operation` of `block` need not wait for signals and semaphores now."""
        rank = self.owner[block]
        if operation.action is Action.ACQUIRE:
            return all(self._released[rank, number] for number in operation.semaphores)
        if operation.action.waits:
            return all(self._signals[rank, n, operation.kind] for n in self.channels(block, operation))
        return True

    def channels(self, block: int, operation: Operation) -> list[int]:
        """Return the channels of `operation` by their numbers within the rank."""
        rank = self.owner[block]
        numbers = self._plan.ranks[rank].blocks[block - int(self._first[rank])].channels_of(operation.kind)
        return [numbers[local] for local in operation.channels]

    def signal(self, block: int, operation: Operation, thread: int) -> None:
        """Tell the peer of a channel what `thread` of `block` knows, or, through a port, its proxy after that."""
        rank, number = self.owner[block], self.channels(block, operation)[thread]
        told = self.knowledge(block, thread)
        if operation.kind == "port":
            told = self.push(block, thread, number)
        elif operation.action is Action.RELAXED_SIGNAL:
            told[ORDERED] = 0
        peer, other = self._plan.other_end(rank, number, operation.kind)
        self._signals[peer, other, operation.kind].append(told)

    def push(self, block: int, thread: int, number: int) -> Clock:
        """Give the proxy of port `number` something to do after what `thread` knows; return what is known after it."""
        proxy = self.proxy[self.owner[block], number]
        clock = self.clock[proxy]
        np.maximum(clock, self.knowledge(block, thread), out=clock)
        self._time[proxy] += 1
        clock[:, proxy] = self._time[proxy]
        return np.asarray(clock.copy())

    def hear(self, block: int, thread: int, news: Clock) -> None:
        """Let one thread of `block` know what was told."""
        self._threads[block][thread] = np.maximum(self.knowledge(block, thread), news)

    def tick(self, block: int) -> None:
        """Let `block` come to its next operation."""
        self._time[block] += 1

    def time(self, component: int) -> int:
        """Return the time of what a block or proxy does now; of a block it is over with the next nop."""
        return self._time[component]

    def packet(self, component: int) -> NDArray[np.int32]:
        """Return what a packet tells that is written now: what its writer has done so far, this included."""
        told = self.clock[component, HAPPENED].copy()
        told[component] = self.time(component)
        return np.asarray(told)

    def knowledge(self, block: int, thread: int) -> Clock:
        """Return what a thread may tell: of the data that its block moves now, nothing."""
        return np.asarray(np.maximum(self.clock[block], self._threads[block].get(thread, 0)))

    def join(self, block: int) -> None:
        """All threads of `block` wait for each other."""
        self.clock[block, :, block] = self._time[block]
        for known in self._threads[block].values():
            np.maximum(self.clock[block], known, out=self.clock[block])
        self._threads[block].clear()

    def _receive(self, block: int, queues: list[deque[Clock]], action: Action) -> bool:
        if not all(queues):
            return False
        for thread, queue in enumerate(queues):
            told = queue.popleft()
            if action is Action.RELAXED_WAIT:
                told = told.copy()
                told[ORDERED] = 0
            self.hear(block, thread, told)
        return True

    def _meet(self, block: int, operation: Operation) -> bool:
        """Come to a barrier, or go on from it once all are there."""
        number, blocks = operation.barrier or (0, 1)
        met = self._met[self.owner[block], number]
        if met.get(block) == 1:
            del met[block]  # the others have released it
            return True
        met.setdefault(block, 0)
        if len(met) < blocks or any(met.values()):
            return False
        for each in met:
            self.join(each)
        known = self.clock[list(met)].max(axis=0)
        self.clock[list(met)] = known
        met.update(dict.fromkeys(met, 1))
        del met[block]
        return True


MOST_REPEATS = 2
"""Parts that pipelines are cut into, see `chorale.synth.programs.plans.moves`."""
