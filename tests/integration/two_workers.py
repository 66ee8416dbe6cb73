"""How much faster maps are on several workers, by processor time: `python -m tests.integration.two_workers`.

Each worker is a process that does its tasks while all others wait, and Linux counts the nanoseconds that it ran. When
a task of a cluster begins and ends follows from these in virtual time: the worker that is free first takes the next
task, and the coordinator, on a core of its own, sends tasks, takes results and does what is between maps. So other work
on the machine counts little, and cores that the machine lacks are there. The least of several rounds counts.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import Executor, OnResult, Progress
from chorale.synth.executor.worker import CallOutcome, SharedValue, TaskCall, WorkerProcess, pickled
from chorale.synth.finder.find import find_all
from chorale.synth.finder.query import FinderQuery
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology


class VirtualCluster:
    """An Executor on `workers` workers. `now_s`: virtual time; `worked_s`: of all workers; `costs_s`: of each task."""

    name = "virtual"

    def __init__(self, workers: int) -> None:
        self._workers: list[WorkerProcess] = [WorkerProcess(preload="chorale.synth.methods.catalog")]
        self._workers += [WorkerProcess(preload="chorale.synth.methods.catalog") for _ in range(workers - 1)]
        self.costs_s: list[float] = []
        self._waited_s = 0.0

    @property
    def now_s(self) -> float:
        """What the coordinator worked, and what it waited for workers."""
        return time.process_time() + self._waited_s

    def map(
        self,
        function: Callable[[Any, Any], Any],
        tasks: Sequence[Any],
        shared: Any = None,
        progress: Progress | None = None,
        on_result: OnResult | None = None,
    ) -> list[Any]:
        message = pickled(SharedValue(shared))
        for worker in self._workers:
            worker.send(message)
        flights: dict[int, tuple[float, int, bytes]] = {}  # when it ends, its task, the reply
        numbers = iter(range(len(tasks)))
        for slot in range(len(self._workers)):
            self._begin(slot, function, tasks, next(numbers, None), flights)
        results: dict[int, Any] = {}
        while flights:
            slot = min(flights, key=lambda slot: flights[slot][0])
            end_s, number, reply = flights.pop(slot)
            self._waited_s += max(0.0, end_s - self.now_s)
            self._begin(slot, function, tasks, next(numbers, None), flights)
            outcome: CallOutcome = pickle.loads(reply)  # from a child of this process
            if outcome.error is not None:
                raise outcome.error
            results[number] = outcome.value
            if on_result is not None:
                on_result(number, outcome.value)
            if progress is not None:
                progress(len(results), len(tasks))
        return [results[number] for number in range(len(tasks))]

    def _begin(
        self,
        slot: int,
        function: Callable[[Any, Any], Any],
        tasks: Sequence[Any],
        number: int | None,
        flights: dict[int, tuple[float, int, bytes]],
    ) -> None:
        """Let the worker do the task now, and say when it ends in virtual time."""
        if number is None:
            return
        worker = self._workers[slot]
        before_s = ran_s(worker._process.pid)
        worker.send(pickled(TaskCall(function, tasks[number])))
        reply = worker.receive()
        cost_s = ran_s(worker._process.pid) - before_s
        self.costs_s.append(cost_s)
        flights[slot] = (self.now_s + cost_s, number, reply)

    def close(self) -> None:
        for worker in self._workers:
            worker.end()


def ran_s(process: int) -> float:
    """Return how long the threads of a process have run."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def bfb(executor: Executor, nodes: int) -> str:
    return synthesize_unverified("bfb", parse_topology(f"genkautz:4,{nodes}"), ALLGATHER, None, executor).id


def seeds(executor: Executor, nodes: int) -> str:
    options = Options(seeds=8)
    return synthesize_unverified("forest", parse_topology(f"genkautz:4,{nodes}"), ALLGATHER, options, executor).id


def frontiers(executor: Executor, nodes: int) -> str:
    frontier = find_all([FinderQuery(count, 4) for count in range(5, nodes + 1)], executor)
    return str([[network.spec for network in networks] for networks in frontier.values()])


CASES: dict[str, tuple[Callable[[Executor, int], str], int, int]] = {
    "bfb": (bfb, 4000, 40),  # on generalized Kautz graphs of degree 4, which have no symmetries
    "seeds": (seeds, 400, 40),  # eight packings of trees
    "frontiers": (frontiers, 800, 20),  # all networks from 5 nodes on
}
"""What is made, its number of nodes, and a small number with which workers load what they need."""


@dataclass(frozen=True, slots=True)
class TimedMap:
    """Virtual seconds, the seconds of each task, and the result."""

    seconds: float
    costs_s: list[float]
    result: str


def measured(case: str, counts: Sequence[int], rounds: int) -> dict[int, TimedMap]:
    """Return the fastest round by number of workers; in each round all numbers have a turn.

    What workers remember of a network is forgotten in each round, as before it they work on a small one.
    """
    make, nodes, few_nodes = CASES[case]
    with ExitStack() as stack:
        clusters = {workers: stack.enter_context(closing(VirtualCluster(workers))) for workers in counts}
        times: dict[int, list[TimedMap]] = {workers: [] for workers in counts}
        for _ in range(rounds):
            for workers, cluster in clusters.items():
                make(cluster, few_nodes)
                cluster.costs_s.clear()
                began_s = cluster.now_s
                result = make(cluster, nodes)
                times[workers].append(TimedMap(cluster.now_s - began_s, list(cluster.costs_s), result))
    return {workers: min(turns, key=lambda turn: turn.seconds) for workers, turns in times.items()}


def main() -> int:
    """Print a row for each case and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--record", type=Path, help="write the seconds of the tasks of one worker, a JSON list, here")
    options = parser.parse_args()
    recorded: list[float] = []
    for name in options.cases:
        times = measured(name, options.workers, options.rounds)
        first = times[options.workers[0]]
        recorded += first.costs_s
        for workers, timed in times.items():
            row = {"case": name, "workers": workers, "tasks": len(timed.costs_s), "seconds": round(timed.seconds, 3)}
            row |= {"of_tasks_s": round(sum(timed.costs_s), 3), "speedup": round(first.seconds / timed.seconds, 3)}
            row |= {"same": timed.result == first.result, "load_average": round(os.getloadavg()[0], 1)}
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    if options.record:
        options.record.write_text(json.dumps(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
