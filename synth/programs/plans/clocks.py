"""What blocks know of each other in runs of a plan: vector clocks, signals, semaphores, barriers and proxies.

Component b of a clock counts the operations of block b, up to the last of its `nop`s. Further components count the
operations of the proxy behind each port, and contain for each rank the number of its calls that have begun. The first
row, ORDERED, is what happened and can be seen. The last row, HAPPENED, also contains what is known to have happened
without an order of memory: a relaxed signal or a packet gives no more than that. Without such operations, clocks have
one row. A block knows what all its threads know; until the next `nop` a single thread also knows what it waited for.
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
"""Parts that pipelines are cut into, see `chorale.synth.programs.plans.moves`."""


def clock_shape(plan: ExecutionPlan) -> tuple[int, int, int]:
    """Return the number of blocks and proxies that have a clock, of rows, and of components."""
    owners = sum(len(body.blocks) + len(body.port_peers) for body in plan.ranks)
    operations = (each for body in plan.ranks for block in body.blocks for each in block.every_operation())
    is_relaxed = any(body.port_peers or body.switches for body in plan.ranks) or any(
        each.action.packets or each.action in (Action.RELAXED_SIGNAL, Action.RELAXED_WAIT) for each in operations
    )
    return owners, 2 if is_relaxed else 1, owners + len(plan.ranks)


class PlanClocks:
    """Clocks of all blocks and proxies, and the signals between them. `latest`: an upper bound of all times."""

    def __init__(self, plan: ExecutionPlan, calls: int, latest: int) -> None:
        self._plan = plan
        self.owner = [rank for rank, body in enumerate(plan.ranks) for _ in body.blocks]
        ports = [(rank, port) for rank, body in enumerate(plan.ranks) for port in range(len(body.port_peers))]
        self.proxy = {end: len(self.owner) + number for number, end in enumerate(ports)}
        self.begun = len(self.owner) + len(ports)  # the component of rank 0
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
        """End the previous call of all `blocks` of `rank`, share what they know, and begin `call`.

        A call ends when the ports of the rank have read what they were given.
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
        """Do everything of `step` of `block` except moving data; return False if it has to wait."""
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
        """Return the queues of the signals and semaphores that `step` waits for."""
        rank, operation = self.owner[block], step.operation
        if operation.action is Action.ACQUIRE:
            return [self._released[rank, number] for number in operation.semaphores]
        return [self._signals[rank, n, operation.kind] for n in step.channels] if operation.action.waits else []

    def signal(self, block: int, step: Step, thread: int) -> None:
        """Signal the peer of a channel with what `thread` of `block` knows; through a port, its proxy does it later."""
        rank, number, kind = self.owner[block], step.channels[thread], step.operation.kind
        news = self.push(block, thread, number) if kind == "port" else self._knowledge(block, thread)
        if kind != "port" and step.operation.action is Action.RELAXED_SIGNAL:
            news[ORDERED] = 0
        peer, other = self._plan.other_end(rank, number, kind)
        self._signals[peer, other, kind].append(news)

    def push(self, block: int, thread: int, number: int) -> Clock:
        """Let the proxy of port `number` work after everything that `thread` knows; return what is known after it."""
        proxy = self.proxy[self.owner[block], number]
        clock = self.clock[proxy]
        np.maximum(clock, self._knowledge(block, thread), out=clock)
        self._time[proxy] += 1
        clock[:, proxy] = self._time[proxy]
        return np.asarray(clock.copy())

    def hear(self, block: int, thread: int, news: Clock) -> None:
        """Let one thread of `block` know `news`, which must not be changed afterwards."""
        held = self._threads[block].get(thread)
        self._threads[block][thread] = news if held is None else np.maximum(held, news)

    def tick(self, block: int) -> None:
        """Let `block` come to its next operation."""
        self._time[block] += 1

    def time(self, component: int) -> int:
        """Return the time of what a block or proxy does now; for a block it is over with the next nop."""
        return self._time[component]

    def packet(self, component: int) -> Clock:
        """Return what a packet written now conveys: everything that its writer has done, including this write."""
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
        """Return what a thread may pass on; the data that its block moves now are not included."""
        heard = self._threads[block].get(thread)
        return np.asarray(self.clock[block].copy() if heard is None else np.maximum(self.clock[block], heard))

    def _meet(self, block: int, number: int, blocks: int) -> bool:
        """Arrive at a barrier, or go on from it when all have arrived."""
        met = self._met[self.owner[block], number]
        if met.get(block) == 1:
            del met[block]  # the others have released it
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
