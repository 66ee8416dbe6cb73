"""A coordinator with up to thousands of workers that are simulated: `python -m tests.integration.coordinator`.

`RayPool` and `RayExecutor` run as they are; actors, object references and `ray.wait` are simulated in virtual time, to
which the processor time of this process is added, and what Ray itself costs a call by options (measured on a real
cluster). Prints for each number of workers the processor time of a task, the share of a core, and how much longer
everything took than with a coordinator that costs nothing.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from chorale.runners.ray import executor as executor_module
from chorale.runners.ray import fault_tolerance, pool
from chorale.runners.ray.executor import RayExecutor


class VirtualRay:
    """What `RayPool` and `RayExecutor` use of Ray: `workers` actors, each on a node of its own.

    task_s: how long the task with a number takes
    call_s, get_s, reference_s: processor time of Ray for a call, a result, and each reference that is waited for
    """

    def __init__(self, workers: int, task_s: Callable[[int], float], call_s: float, get_s: float, reference_s: float):
        self.exceptions = SimpleNamespace(RayError=ArithmeticError, RayTaskError=ArithmeticError)
        self._workers, self._task_s = workers, task_s
        self._call_s, self._get_s, self._reference_s = call_s, get_s, reference_s
        self._skipped_s, self.ray_s, self.simulation_s, self._numbers = 0.0, 0.0, 0.0, itertools.count()
        self._ends: list[tuple[float, int]] = []
        self._done: set[int] = set()
        self._values: dict[int, Any] = {}
        self._busy_until_s: dict[int, float] = {}
        self.worked_s = 0.0

    @property
    def now_s(self) -> float:
        """Virtual time: what the coordinator and Ray worked, and what they waited."""
        return time.process_time() - self.simulation_s + self.ray_s + self._skipped_s

    def remote(self, **_options: Any) -> Callable[[type], Any]:
        return lambda _kind: SimpleNamespace(remote=lambda *_arguments: self._actor(next(self._numbers)))

    def _actor(self, name: int) -> Any:
        start = SimpleNamespace(remote=lambda _function: self._reference(name, 0.0, f"node {name}"))
        run = SimpleNamespace(
            remote=lambda _map, _function, task: self._reference(name, self._task_s(task), task, self._call_s)
        )
        return SimpleNamespace(__ray_call__=start, run=run)

    def _reference(self, actor: int, seconds: float, value: Any, cost_s: float = 0.0) -> int:
        reference = next(self._numbers)
        self.ray_s += cost_s
        end_s = max(self.now_s, self._busy_until_s.get(actor, 0.0)) + seconds
        self._busy_until_s[actor] = end_s
        self.worked_s += seconds
        self._values[reference] = value
        heapq.heappush(self._ends, (end_s, reference))
        return reference

    def wait(self, references: Sequence[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        began_s = time.process_time()
        self.ray_s += self._reference_s * len(references)
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
        self.ray_s += self._get_s
        self._done.discard(reference)
        return self._values.pop(reference)

    def put(self, value: Any) -> Any:
        return value

    def kill(self, actor: Any) -> None:
        """Nothing runs."""

    def is_initialized(self) -> bool:
        return False

    def nodes(self) -> list[dict[str, Any]]:
        return []


def run(workers: int, tasks: int, task_s: Callable[[int], float], costs: Sequence[float]) -> dict[str, Any]:
    """Return what `tasks` tasks cost the coordinator of `workers` workers."""
    ray = VirtualRay(workers, task_s, *costs)
    executor = object.__new__(RayExecutor)
    executor._workers, executor._pool, executor._maps, executor._closed = workers, None, 0, False  # type: ignore[misc]
    executor._cluster = SimpleNamespace(free_cpus=workers, close=lambda: None)  # type: ignore[assignment]
    modules = (executor_module, fault_tolerance, pool)
    patches = [patch.object(module, "ray", ray) for module in modules]
    for each in patches:
        each.start()
    try:
        executor._pool_for(workers)
        began_s, before_s = ray.now_s, time.process_time() - ray.simulation_s + ray.ray_s
        ray.worked_s = 0.0
        assert executor.map(lambda _shared, task: task, range(tasks)) == list(range(tasks))
        seconds, own_s = ray.now_s - began_s, time.process_time() - ray.simulation_s + ray.ray_s - before_s
    finally:
        for each in patches:
            each.stop()
    ideal_s = max(ray.worked_s / workers, *map(task_s, range(tasks)))
    return {
        "workers": workers,
        "tasks": tasks,
        "task_ms": round(ray.worked_s / tasks * 1e3, 1),
        "coordinator_us_per_task": round(own_s / tasks * 1e6),
        "share_of_a_core": round(own_s / seconds, 3),
        "times_ideal": round(seconds / ideal_s, 2),
    }


def main() -> int:
    """Print a row for each number of workers and each length of tasks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 10, 100, 300, 1000])
    parser.add_argument("--task-ms", type=float, nargs="+", default=[20, 100, 1000])
    parser.add_argument("--tasks-per-worker", type=int, default=10)
    parser.add_argument("--ray-us", type=float, nargs=3, default=[150, 70, 1], metavar=("CALL", "GET", "REFERENCE"))
    given = parser.parse_args()
    costs = [us / 1e6 for us in given.ray_us]
    for task_ms in given.task_ms:
        for workers in given.workers:
            length = lambda number, ms=task_ms: ms / 1e3 * (0.5 + (number * 7919 % 1000) / 1000)  # noqa: E731 - spread evenly
            row = run(workers, workers * given.tasks_per_worker, length, costs)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
