"""A map over groups of workers: the coordinator exchanges tasks for results with each group, about once a second."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from chorale.runners.api.base import ResourceRequest
from chorale.runners.api.workers import Future
from chorale.runners.ray.cluster import ray
from chorale.runners.ray.fault_tolerance import NodesOfPools
from chorale.runners.ray.groups import GroupReport, WorkerGroup
from chorale.runners.ray.pool import MAX_ATTEMPTS, POLL_S, START_TIMEOUT_S, Call, RayPool
from chorale.synth.errors import Unavailable

FIRST_DEPTH, LARGEST_DEPTH = 3, 64
"""Tasks that a group holds for each of its workers: at first, and at most where tasks are short."""

MANY_GROUPS, GATHER_S = 8, 0.05
"""From that many groups on a look is shared by the reports that come within that time; what groups hold hides it."""

_LEADER = ResourceRequest(cpus=0)


@dataclass(slots=True, eq=False)
class _Group:
    """A leader in a pool of its own, which replaces it when it dies, and the numbers of the tasks that it holds.

    sent: those that went with the exchange under way
    """

    pool: RayPool
    size: int
    incarnation: str = ""
    started: int = 0
    depth: int = FIRST_DEPTH
    held: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)
    exchange: Future[GroupReport] | None = None


class WorkerGroups:
    """Groups of at most `group_size` workers each."""

    def __init__(self, group_size: int) -> None:
        self._group_size = group_size
        self._groups: list[_Group] = []
        self._nodes = NodesOfPools(_LEADER)

    @property
    def size(self) -> int:
        return sum(group.size for group in self._groups)

    def grow(self, workers: int) -> None:
        """Add groups of equal sizes, nearly, until there are `workers` workers."""
        missing = max(0, workers - self.size)
        count = -(-missing // self._group_size)
        for index in range(count):
            size = missing * (index + 1) // count - missing * index // count
            pool = RayPool(WorkerGroup, (size,), 1, nodes=self._nodes)
            self._groups.append(_Group(pool, size))

    def map(
        self,
        map_number: int,
        function_reference: list[Any],
        tasks: Sequence[Any],
        arrived: Callable[[int, Any], None],
    ) -> None:
        """Do all tasks; `arrived` hears the number of each and its result. Raises what a task raises."""
        _GroupedMap(self._groups, map_number, function_reference, tasks).run(arrived)

    def close(self) -> None:
        """Kill the leaders, with whom their workers end."""
        for group in self._groups:
            group.pool.close()
        self._groups.clear()
        self._nodes = NodesOfPools(_LEADER)


class _GroupedMap:
    """The state of one map. What a dead leader or group held is done again, at most `MAX_ATTEMPTS` times each."""

    def __init__(
        self, groups: Sequence[_Group], map_number: int, function_reference: list[Any], tasks: Sequence[Any]
    ) -> None:
        self._groups = groups
        self._map_number, self._function_reference = map_number, function_reference
        self._tasks = tasks
        self._waiting = deque(range(len(tasks)))
        self._losses: Counter[int] = Counter()
        self._last_alive_s = self._last_look_s = time.monotonic()

    def run(self, arrived: Callable[[int, Any], None]) -> None:
        ended = 0
        while ended < len(self._tasks):
            for group in self._groups:
                if group.exchange is None and (group.held or self._waiting):
                    self._begin_exchange(group)
            for group in self._groups_with_news():
                for number, value in self._end_exchange(group):
                    ended += 1
                    arrived(number, value)
            self._check_some_started()

    def _begin_exchange(self, group: _Group) -> None:
        """Send tasks up to the group's depth, but no more than its workers' share of those that are left."""
        workers = max(1, sum(each.started for each in self._groups))
        share = -(-len(self._waiting) * group.started // workers)
        room = min(share, group.depth * group.started - len(group.held))
        numbers = [self._waiting.popleft() for _ in range(room)]
        group.sent = set(numbers)
        group.held |= group.sent
        tasks = [(number, self._tasks[number]) for number in numbers]
        call = Call("exchange", (self._map_number, self._function_reference, tasks, bool(self._waiting)))
        group.exchange = group.pool.submit(call)

    def _groups_with_news(self) -> list[_Group]:
        """Wait for an exchange to end; return the groups of those that have. Now and then look at leaders, too."""
        by_reference = {reference: group for group in self._groups for reference in group.pool.references()}
        ready = _arrived(list(by_reference)) if by_reference else []
        looked_at: Iterable[_Group] = [by_reference[reference] for reference in ready]
        if time.monotonic() - self._last_look_s >= POLL_S:
            self._last_look_s, looked_at = time.monotonic(), self._groups
        for group in looked_at:
            group.pool.collect()
        return [group for group in looked_at if group.exchange is not None and group.exchange.done]

    def _end_exchange(self, group: _Group) -> list[tuple[int, Any]]:
        """Return numbers and results of tasks. Raises the error of a task, or of the leader."""
        assert group.exchange is not None
        completion = group.exchange.completion
        error = completion.error or completion.value.error
        if error is not None:
            raise error
        report, group.exchange = completion.value, None
        if group.incarnation not in ("", report.incarnation):
            self._do_again(group, group.held - group.sent)
        if report.is_hungry:
            group.depth = min(2 * group.depth, LARGEST_DEPTH)
        self._do_again(group, report.returned)
        group.incarnation, group.started = report.incarnation, report.started
        group.held -= {number for number, _ in report.results}
        return report.results

    def _do_again(self, group: _Group, lost: Iterable[int]) -> None:
        numbers = sorted(lost)
        group.held.difference_update(numbers)
        self._losses.update(numbers)
        worst = max((self._losses[number] for number in numbers), default=0)
        if worst >= MAX_ATTEMPTS:
            rule = f"a group of workers must survive its tasks within {MAX_ATTEMPTS} attempts"
            way_out = "look for a lack of memory on the nodes, or use fewer workers"
            raise Unavailable(rule, f"a task that was lost {worst} times", way_out)
        self._waiting.extendleft(reversed(numbers))

    def _check_some_started(self) -> None:
        if any(group.started or group.held for group in self._groups):
            self._last_alive_s = time.monotonic()
        elif time.monotonic() - self._last_alive_s > START_TIMEOUT_S:
            value = f"{sum(group.size for group in self._groups)} workers without a node after {START_TIMEOUT_S:.0f} s"
            raise Unavailable("a Ray actor needs a node with a CPU", value, "ask for fewer workers or free the cluster")


def _arrived(references: list[Any]) -> list[Any]:
    """Wait for an object, `POLL_S` at most; of many, for a moment longer. Return those that are there."""
    ready = ray.wait(references, num_returns=1, timeout=POLL_S)[0]
    if ready and len(references) >= MANY_GROUPS:
        return ray.wait(references, num_returns=len(references), timeout=GATHER_S)[0]
    return ready
