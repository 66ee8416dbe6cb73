"""Vector clocks of a plan's blocks: what each block knows about the progress of the other blocks.

Clocks are updated by signals, semaphores, barriers and port proxies. Component b of a clock counts the operations of
block b, up to its last `nop`. The next components count the operations of each port's proxy, and the last components
the calls that each rank has begun.

A clock has two rows. ORDERED covers operations that have happened and whose writes are visible. HAPPENED also covers
operations that are known to have happened, but whose writes may not be visible yet, which is all that relaxed signals
and packets guarantee. If a plan has no relaxed operations, its clocks have only one row.

A block's clock contains what all its threads know. Until the next `nop`, a thread may also know about operations for
which only this thread has waited.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.plans.moves import Step
from chorale.synth.programs.plans.plan import Action, ExecutionPlan, Kind

Clock = NDArray[np.signedinteger[Any]]
"""int[rows, components]"""

ORDERED, HAPPENED = 0, -1
MOST_REPEATS = 2
"""Maximum number of parts into which pipelines are cut here; see `chorale.synth.programs.plans.moves`."""


def clock_shape(plan: ExecutionPlan) -> tuple[int, int, int]:
    """Return the shape of all clocks: (number of clocks, which is one per block or proxy; rows; components)."""
    owners = sum(len(body.blocks) + len(body.port_peers) for body in plan.ranks)
    operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    is_relaxed = any(body.port_peers or body.switches for body in plan.ranks) or any(
        each.action.packets or each.action in (Action.RELAXED_SIGNAL, Action.RELAXED_WAIT) for each in operations
    )
    return owners, 2 if is_relaxed else 1, owners + len(plan.ranks)


class PlanClocks:
    """Clocks of all blocks and proxies, and the signals between them. `latest`: an upper bound on all clock values."""

    def __init__(self, plan: ExecutionPlan, calls: int, latest: int) -> None:
        self._plan = plan
        self.owner = [rank for rank, body in enumerate(plan.ranks) for _ in body.blocks]
        ports = [(rank, port) for rank, body in enumerate(plan.ranks) for port in range(len(body.port_peers))]
        self.proxy = {end: len(self.owner) + number for number, end in enumerate(ports)}
        self.begun = len(self.owner) + len(ports)  # component of rank 0
        self.clock: Clock = np.zeros(clock_shape(plan), dtype=np.int16 if latest < 2**15 else np.int32)
        self._time = [0] * self.begun
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
        """End the previous call on all `blocks` of `rank`, merge their clocks, and begin `call`.

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
            known[HAPPENED, proxy] = self._time[proxy]
        self.clock[blocks] = known

    def try_advance(self, block: int, step: Step) -> bool:
        """Execute `step` of `block`, except for moving data. Return False if the block has to wait."""
        operation = step.operation
        action, rank = operation.action, self.owner[block]
        if action is Action.NOP:
            self.join(block)
        elif action is Action.BARRIER:
            return self._meet(block, *(operation.barrier or (0, 1)))
        elif action in (Action.SIGNAL, Action.RELAXED_SIGNAL):
            for thread in range(len(step.channels)):
                self.signal(block, step, thread)
        elif action is Action.RELEASE:
            for thread, number in enumerate(operation.semaphores):
                self._released[rank, number].append(self._knowledge(block, thread))
        elif action.waits or action is Action.ACQUIRE:
            queues = self._awaited(block, step)
            if not all(queues):
                return False
            for thread, queue in enumerate(queues):
                news = queue.popleft()
                if action is Action.RELAXED_WAIT:
                    news = news.copy()
                    news[ORDERED] = 0
                self.hear(block, thread, news)
        return True

    def _awaited(self, block: int, step: Step) -> list[deque[Clock]]:
        """Return the queues of the signals or semaphores for which `step` waits."""
        rank, operation = self.owner[block], step.operation
        if operation.action is Action.ACQUIRE:
            return [self._released[rank, number] for number in operation.semaphores]
        return [self._signals[rank, n, operation.kind] for n in step.channels] if operation.action.waits else []

    def signal(self, block: int, step: Step, thread: int) -> None:
        """Send the clock of a block's `thread` to the channel's peer. For a port, the proxy sends the clock later."""
        rank, number, kind = self.owner[block], step.channels[thread], step.operation.kind
        news = self.push(block, thread, number) if kind == "port" else self._knowledge(block, thread)
        if kind != "port" and step.operation.action is Action.RELAXED_SIGNAL:
            news[ORDERED] = 0
        peer, other = self._plan.other_end(rank, number, kind)
        self._signals[peer, other, kind].append(news)

    def push(self, block: int, thread: int, number: int) -> Clock:
        """Let the proxy of port `number` do one operation after everything that `thread` of `block` knows.

        Returns the proxy's new clock.
        """
        proxy = self.proxy[self.owner[block], number]
        clock = self.clock[proxy]
        np.maximum(clock, self._knowledge(block, thread), out=clock)
        self._time[proxy] += 1
        clock[:, proxy] = self._time[proxy]
        return np.asarray(clock.copy())

    def hear(self, block: int, thread: int, news: Clock) -> None:
        """Merge the vector clock `news` into the clock of `thread` in `block`. `news` must not be modified later."""
        held = self._threads[block].get(thread)
        self._threads[block][thread] = news if held is None else np.maximum(held, news)

    def tick(self, block: int) -> None:
        """Advance the time of `block` by one operation."""
        self._time[block] += 1

    def time(self, component: int) -> int:
        """Return the time of the current operation of a block or proxy. A block's operation ends at the next nop."""
        return self._time[component]

    def packet(self, component: int) -> Clock:
        """Return the clock that readers of a packet written now receive. It covers this write and all earlier work."""
        news = self.clock[component, HAPPENED].copy()
        news[component] = self.time(component)
        return np.asarray(news)

    def join(self, block: int) -> None:
        """Let all threads of `block` wait for each other."""
        self.clock[block, :, block] = self._time[block]
        for known in self._threads[block].values():
            np.maximum(self.clock[block], known, out=self.clock[block])
        self._threads[block].clear()

    def _knowledge(self, block: int, thread: int) -> Clock:
        """Return the clock that `thread` passes on to others. It excludes the current data movement of its block."""
        heard = self._threads[block].get(thread)
        return np.asarray(self.clock[block].copy() if heard is None else np.maximum(self.clock[block], heard))

    def _meet(self, block: int, number: int, blocks: int) -> bool:
        """Let `block` arrive at a barrier. Return True once all blocks have arrived, so that it may continue."""
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
