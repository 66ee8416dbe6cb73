"""A coordinator on a real Ray with fake nodes and paced workers: `python -m tests.integration.coordinator_live`.

Every message between the coordinator and the actors that it talks to is Ray's own. The workers below are simulated: an
actor that leads a group, or stands for many single workers, answers when recorded tasks would have ended. Prints the
processor time of the coordinating process, Ray's threads in it included, as a share of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from chorale.runners.ray import grouped_map, pool
from chorale.runners.ray.cluster import ray
from chorale.runners.ray.executor import GROUP_SIZE, RayExecutor
from chorale.runners.ray.groups import GroupReport
from tests.integration.coordinator import VirtualGroup
from tests.integration.two_nodes import cluster_of

HOSTS = 16
"""Actors that stand for all single workers."""
START_LIMIT_S = 120.0
IDLE_S = 5.0


class PacedGroup:
    """Stands for a `WorkerGroup`: the task of a number takes so many seconds, in which nothing is done."""

    def __init__(self, size: int) -> None:
        self._group = VirtualGroup(size)

    def exchange(
        self, _map_number: int, _function: list[Any], tasks: Sequence[tuple[int, float]], has_more: bool
    ) -> GroupReport:
        now_s = time.monotonic()
        for number, seconds in tasks:
            self._group.take(now_s, number, seconds)
        until_s, report = self._group.report(now_s, has_more)
        time.sleep(max(0.0, until_s - time.monotonic()))
        return report


class PacedWorkers:
    """Stands for many `MapWorker`s, each of which does one task after the other."""

    def __init__(self) -> None:
        self._busy_until_s: dict[int, float] = {}

    async def run(self, worker: int, task: float) -> float:
        """Answer when `worker` would have done a task of so many seconds."""
        end_s = max(time.monotonic(), self._busy_until_s.get(worker, 0.0)) + task
        self._busy_until_s[worker] = end_s
        await asyncio.sleep(max(0.0, end_s - time.monotonic()))
        return task


class RayOfPacedWorkers:
    """Ray for a pool: itself, but new actors are numbers of workers in a few real actors."""

    def __init__(self) -> None:
        kind = ray.remote(num_cpus=0, max_concurrency=10_000)(PacedWorkers)
        self._hosts = [kind.remote() for _ in range(HOSTS)]
        self._workers = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(ray, name)

    def remote(self, **_options: Any) -> Any:
        return lambda _kind: SimpleNamespace(remote=self._worker)

    def kill(self, _worker: Any) -> None:
        """Workers are numbers."""

    def _worker(self) -> Any:
        self._workers += 1
        number, host = self._workers, self._hosts[self._workers % HOSTS]
        run = SimpleNamespace(remote=lambda _map, _function, task: host.run.remote(number, task))
        return SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda _node: host.run.remote(number, 0.0)), run=run)


def _idle_share() -> float:
    """Return what this process takes of a core while it only waits: Ray's threads in it."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    time.sleep(IDLE_S)
    return (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)


def _all_answer(executor: RayExecutor, workers: int) -> bool:
    single = executor._pool is not None and executor._pool.has_all_started
    return single or sum(group.started for group in executor._groups._groups) == workers


def same(_: None, task: float) -> float:
    return task


def measure(workers: int, costs_s: Sequence[float], group_size: int) -> dict[str, Any]:
    """Return what a map of tasks of these seconds costs this process, after those that start the actors."""
    with ExitStack() as stack:
        if group_size:
            stack.enter_context(patch.object(grouped_map, "WorkerGroup", PacedGroup))
        else:
            stack.enter_context(patch.object(pool, "ray", RayOfPacedWorkers()))
        single = 0 if group_size else workers
        executor = RayExecutor(workers=workers, group_size=group_size or 1, most_single=single)
        stack.callback(executor.close)
        until_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < until_s and not _all_answer(executor, workers):
            executor.map(same, [0.01] * (2 * workers))
        idle_share = _idle_share()
        began_s, began_cpu_s, began_here_s = time.monotonic(), time.process_time(), time.thread_time()
        executor.map(same, costs_s)
        wall_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        here_s = time.thread_time() - began_here_s
    return {
        "workers": workers,
        "group_size": group_size,
        "tasks": len(costs_s),
        "task_ms": round(sum(costs_s) / len(costs_s) * 1e3, 1),
        "coordinator_us_per_task": round(cpu_s / len(costs_s) * 1e6),
        "share_of_a_core": round(cpu_s / wall_s, 4),
        "share_of_this_thread": round(here_s / wall_s, 4),
        "share_while_idle": round(idle_share, 4),
        "times_ideal": round(wall_s / max(sum(costs_s) / workers, *costs_s), 2),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Print a row for each number of workers and each size of groups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[1000])
    parser.add_argument("--group-size", type=int, nargs="+", default=[0, GROUP_SIZE], help="0: calls each worker")
    parser.add_argument("--task-ms", type=float, default=1000, help="mean of the tasks")
    parser.add_argument("--costs", type=Path, help="file with the seconds of recorded tasks, a JSON list")
    parser.add_argument("--tasks-per-worker", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=4)
    options = parser.parse_args()
    recorded = json.loads(options.costs.read_text()) if options.costs else [0.5 + index / 999 for index in range(1000)]
    unit_s = options.task_ms / 1e3 * len(recorded) / sum(recorded)
    with cluster_of(options.nodes):
        for workers in options.workers:
            tasks = range(workers * options.tasks_per_worker)
            costs_s = [recorded[number * 7919 % len(recorded)] * unit_s for number in tasks]
            for group_size in options.group_size:
                sys.stdout.write(json.dumps(measure(workers, costs_s, group_size)) + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
