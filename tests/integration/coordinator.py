"""A coordinator with up to thousands of workers that are simulated: `python -m tests.integration.coordinator`.

`RayExecutor`, its pool and its groups run as they are; actors, references and `ray.wait` are simulated in virtual
time, to which the processor time of this process is added, and what Ray itself costs a call by options (measured on a
real cluster). Prints for each number of workers the processor time of a task, the share of a core, and how much longer
everything took than with a coordinator that costs nothing. `--group-size 0` is a coordinator that calls each worker.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from chorale.runners.ray import executor as executor_module
from chorale.runners.ray import fault_tolerance, grouped_map, pool
from chorale.runners.ray.executor import GROUP_SIZE, MOST_SINGLE, RayExecutor
from chorale.runners.ray.grouped_map import WorkerGroups
from chorale.runners.ray.groups import REPORT_S, GroupReport, WorkerGroup
from chorale.runners.ray.map_worker import TASKS_PER_WORKER


@dataclass(frozen=True, slots=True)
class RayCosts:
    """Processor time of Ray for a call, a result, each reference that is waited for, and a result in a report."""

    call_s: float
    get_s: float
    reference_s: float
    reported_s: float


@dataclass(slots=True)
class VirtualGroup:
    """The workers of a group: when each is free, and when the tasks end that were not reported."""

    size: int
    free_s: list[float] = field(default_factory=list)
    ends: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free_s = [0.0] * self.size

    def take(self, now_s: float, number: int, seconds: float) -> None:
        """Let the worker that is free first do a task."""
        end_s = max(now_s, heapq.heappop(self.free_s)) + seconds
        heapq.heappush(self.free_s, end_s)
        heapq.heappush(self.ends, (end_s, number))

    def report(self, now_s: float, has_more: bool) -> tuple[float, GroupReport]:
        """Return when the exchange that begins now ends, and its report."""
        until_s, ended = now_s + REPORT_S, []
        while self.ends and self.ends[0][0] <= until_s:
            if has_more and len(self.ends) < TASKS_PER_WORKER * self.size:
                break
            ended.append(heapq.heappop(self.ends))
        is_hungry = has_more and len(self.ends) < TASKS_PER_WORKER * self.size
        if is_hungry or not self.ends:
            until_s = max([now_s, *(end_s for end_s, _ in ended)])
        results = [(number, number) for _, number in ended]
        return until_s, GroupReport("simulated", self.size, is_hungry, results, None, [])


class VirtualRay:
    """What the executor uses of Ray: actors, each on a node of its own. `task_s`: how long a task takes."""

    def __init__(self, task_s: Callable[[int], float], costs: RayCosts):
        self.exceptions = SimpleNamespace(RayError=ArithmeticError, RayTaskError=ArithmeticError)
        self._task_s, self._costs = task_s, costs
        self._skipped_s, self.ray_s, self.simulation_s, self._numbers = 0.0, 0.0, 0.0, itertools.count()
        self._ends: list[tuple[float, int]] = []
        self._done: set[int] = set()
        self._values: dict[int, Any] = {}
        self._busy_until_s: dict[int, float] = {}
        self.worked_s = 0.0
        self.messages = 0

    @property
    def now_s(self) -> float:
        """Virtual time: what the coordinator and Ray worked, and what they waited."""
        return time.process_time() - self.simulation_s + self.ray_s + self._skipped_s

    @property
    def coordinator_s(self) -> float:
        """What the coordinator and Ray worked."""
        return time.process_time() - self.simulation_s + self.ray_s

    def remote(self, **_options: Any) -> Callable[[type], Any]:
        return lambda kind: SimpleNamespace(remote=lambda *arguments: self._actor(kind, arguments))

    def _actor(self, kind: type, arguments: tuple[Any, ...]) -> Any:
        name = next(self._numbers)
        start = SimpleNamespace(remote=lambda _function: self._reference(0.0, f"node {name}"))
        if kind is WorkerGroup:
            group = VirtualGroup(*arguments)
            exchange = lambda _map, _function, tasks, has_more: self._exchange(group, tasks, has_more)  # noqa: E731
            return SimpleNamespace(__ray_call__=start, exchange=SimpleNamespace(remote=exchange))
        run = lambda _map, _function, task: self._run(name, task)  # noqa: E731 - a method of an actor
        return SimpleNamespace(__ray_call__=start, run=SimpleNamespace(remote=run))

    def _run(self, actor: int, task: int) -> int:
        self._charge()
        seconds = self._task_s(task)
        end_s = max(self.now_s, self._busy_until_s.get(actor, 0.0)) + seconds
        self._busy_until_s[actor] = end_s
        self.worked_s += seconds
        return self._reference(end_s, task)

    def _exchange(self, group: VirtualGroup, tasks: Sequence[tuple[int, int]], has_more: bool) -> int:
        self._charge()
        began_s, now_s = time.process_time(), self.now_s
        for number, task in tasks:
            group.take(now_s, number, self._task_s(task))
            self.worked_s += self._task_s(task)
        until_s, report = group.report(now_s, has_more)
        self.simulation_s += time.process_time() - began_s
        return self._reference(until_s, report)

    def _charge(self) -> None:
        self.ray_s += self._costs.call_s
        self.messages += 1

    def _reference(self, end_s: float, value: Any) -> int:
        reference = next(self._numbers)
        self._values[reference] = value
        heapq.heappush(self._ends, (end_s, reference))
        return reference

    def wait(self, references: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        began_s = time.process_time()
        self.ray_s += self._costs.reference_s * len(references)
        wanted = set(references)
        self._settle()
        now_s = self.now_s
        until_s, ready = now_s + timeout, len(wanted & self._done)
        while now_s < until_s and ready < num_returns:
            next_s = max(now_s, min(self._ends[0][0], until_s) if self._ends else until_s)
            self._skipped_s, now_s = self._skipped_s + next_s - now_s, next_s
            while self._ends and self._ends[0][0] <= now_s:
                reference = heapq.heappop(self._ends)[1]
                self._done.add(reference)
                ready += reference in wanted
        done = [reference for reference in references if reference in self._done]
        self.simulation_s += time.process_time() - began_s
        return done[:num_returns], []

    def _settle(self) -> None:
        while self._ends and self._ends[0][0] <= self.now_s:
            self._done.add(heapq.heappop(self._ends)[1])

    def get(self, reference: int) -> Any:
        self._done.discard(reference)
        value = self._values.pop(reference)
        self.ray_s += self._costs.get_s
        if isinstance(value, GroupReport):
            self.ray_s += self._costs.reported_s * len(value.results)
        return value

    def put(self, value: Any) -> Any:
        return value

    def kill(self, actor: Any) -> None:
        """Nothing runs."""

    def is_initialized(self) -> bool:
        return False

    def nodes(self) -> list[dict[str, Any]]:
        return []


def run(
    workers: int, tasks: int, task_s: Callable[[int], float], costs: RayCosts, group_size: int = GROUP_SIZE
) -> dict[str, Any]:
    """Return what `tasks` tasks cost the coordinator of `workers` workers; with `group_size` 0 it calls each."""
    ray = VirtualRay(task_s, costs)
    executor = object.__new__(RayExecutor)
    executor._workers, executor._pool, executor._maps, executor._closed = workers, None, 0, False  # type: ignore[misc]
    executor._most_single = MOST_SINGLE if group_size else workers
    executor._groups = WorkerGroups(group_size)
    executor._cluster = SimpleNamespace(free_cpus=workers, close=lambda: None)  # type: ignore[assignment]
    patches = [patch.object(module, "ray", ray) for module in (executor_module, fault_tolerance, grouped_map, pool)]
    for each in patches:
        each.start()
    try:
        began_s, before_s = ray.now_s, ray.coordinator_s
        assert executor.map(lambda _shared, task: task, range(tasks)) == list(range(tasks))
        seconds, coordinator_s = ray.now_s - began_s, ray.coordinator_s - before_s
    finally:
        for each in patches:
            each.stop()
    ideal_s = max(ray.worked_s / workers, *map(task_s, range(tasks)))
    return {
        "workers": workers,
        "tasks": tasks,
        "task_ms": round(ray.worked_s / tasks * 1e3, 1),
        "messages": ray.messages,
        "coordinator_us_per_task": round(coordinator_s / tasks * 1e6),
        "share_of_a_core": round(coordinator_s / seconds, 3),
        "times_ideal": round(seconds / ideal_s, 2),
    }


def main() -> int:
    """Print a row for each number of workers and each length of tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 10, 100, 300, 1000])
    parser.add_argument("--task-ms", type=float, nargs="+", default=[20, 100, 1000])
    parser.add_argument("--tasks-per-worker", type=int, default=10)
    parser.add_argument("--group-size", type=int, default=GROUP_SIZE)
    costs_of_ray = ("CALL", "GET", "REFERENCE", "REPORTED")
    parser.add_argument("--ray-us", type=float, nargs=4, default=[370, 110, 1, 3], metavar=costs_of_ray)
    options = parser.parse_args()
    costs = RayCosts(*(us / 1e6 for us in options.ray_us))
    for task_ms in options.task_ms:
        for workers in options.workers:
            length = lambda number, ms=task_ms: ms / 1e3 * (0.5 + (number * 7919 % 1000) / 1000)  # noqa: E731 - spread evenly
            row = run(workers, workers * options.tasks_per_worker, length, costs, options.group_size)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
