"""How much faster maps are on several workers, by processor time: `python -m tests.integration.two_workers`.

Each worker is a process that does its tasks while all others wait, and Linux counts the nanoseconds that it ran. When
a task of a cluster begins and ends follows from these in virtual time: the worker that is free first takes the next
task, and the coordinator, on a core of its own, sends tasks, takes results and does what is between maps. So other work
on the machine counts little, and cores that the machine lacks are there. One worker would take longer by what the
others did beside the busiest; both times are of the same run, so that its noise is in both.
"""

import argparse
import itertools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import Executor, OnResult, Progress
from chorale.synth.executor.processes import WorkerProcess, shared_message
from chorale.synth.finder.find import FinderQuery, find_all
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.method import Options
from chorale.synth.topology.spec import parse_topology

TASKS_PER_WORKER = 2
"""The second one waits in the worker, as with Ray."""


@dataclass(frozen=True, slots=True)
class Flight:
    """A task that a worker has: when it ends in virtual time, and its result."""

    end_s: float
    slot: int
    number: int
    result: Any


class VirtualCluster:
    """An Executor on `workers` workers. `now_s`: virtual time; `costs_s`: worker and seconds of each task."""

    name = "virtual"

    def __init__(self, workers: int) -> None:
        self._workers: list[WorkerProcess] = [WorkerProcess(preload="chorale.synth.methods.catalog")]
        self._workers += [WorkerProcess(preload="chorale.synth.methods.catalog") for _ in range(workers - 1)]
        self.costs_s: list[tuple[int, float]] = []
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
        message = shared_message(shared)
        calls = ((number, (function, message, task)) for number, task in enumerate(tasks))
        flights: list[Flight] = []
        free_s = [self.now_s] * len(self._workers)
        for slot, (number, call) in zip(itertools.cycle(range(len(free_s))), calls, strict=False):
            flights.append(self._begin(slot, number, call, free_s))
            if len(flights) == TASKS_PER_WORKER * len(free_s):
                break
        results: dict[int, Any] = {}
        while flights:
            flight = min(flights, key=lambda flight: flight.end_s)
            flights.remove(flight)
            self._waited_s += max(0.0, flight.end_s - self.now_s)
            for number, call in itertools.islice(calls, 1):
                flights.append(self._begin(flight.slot, number, call, free_s))
            results[flight.number] = flight.result
            if on_result is not None:
                on_result(flight.number, flight.result)
            if progress is not None:
                progress(len(results), len(tasks))
        return [results[number] for number in range(len(tasks))]

    def _begin(self, slot: int, number: int, call: tuple[Any, bytes, Any], free_s: list[float]) -> Flight:
        """Let the worker do the task now; in virtual time it ends after those before it."""
        process = self._workers[slot].pid
        before_s = ran_s(process)
        result = self._workers[slot].call(*call)
        cost_s = ran_s(process) - before_s
        self.costs_s.append((slot, cost_s))
        free_s[slot] = max(self.now_s, free_s[slot]) + cost_s
        return Flight(free_s[slot], slot, number, result)

    def close(self) -> None:
        for worker in self._workers:
            worker.end()


def ran_s(process: int | None) -> float:
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
    """Virtual seconds, worker and seconds of each task, and the result."""

    seconds: float
    costs_s: list[tuple[int, float]]
    result: str

    @property
    def worked_s(self) -> float:
        return sum(seconds for _, seconds in self.costs_s)

    @property
    def alone_s(self) -> float:
        """What one worker would have taken: the busiest waits for nobody, and does the tasks of all."""
        of_worker: dict[int, float] = defaultdict(float)
        for slot, seconds in self.costs_s:
            of_worker[slot] += seconds
        return self.seconds + self.worked_s - max(of_worker.values())


def measured(case: str, workers: int, rounds: int) -> list[TimedMap]:
    """Return the rounds. What workers remember of a network is forgotten before each, by work on a small one."""
    make, nodes, few_nodes = CASES[case]
    times = []
    with closing(VirtualCluster(workers)) as cluster:
        for _ in range(rounds):
            make(cluster, few_nodes)
            cluster.costs_s.clear()
            began_s = cluster.now_s
            result = make(cluster, nodes)
            times.append(TimedMap(cluster.now_s - began_s, list(cluster.costs_s), result))
    return times


def row_of(case: str, workers: int, times: Sequence[TimedMap]) -> dict[str, Any]:
    """Return medians of the rounds, and the least and most speedup."""
    ratios = sorted(turn.alone_s / turn.seconds for turn in times)
    return {
        "case": case,
        "workers": workers,
        "tasks": len(times[0].costs_s),
        "seconds": round(median(turn.seconds for turn in times), 3),
        "of_tasks_s": round(median(turn.worked_s for turn in times), 3),
        "speedup": round(median(ratios), 2),
        "least_and_most": [round(ratios[0], 2), round(ratios[-1], 2)],
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    """Print a row for each case and number of workers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--workers", type=int, nargs="+", default=[2])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="write the seconds of the tasks, a JSON list, here")
    options = parser.parse_args()
    recorded: list[float] = []
    for name in options.cases:
        for workers in options.workers:
            times = measured(name, workers, options.rounds)
            recorded += [seconds for _, seconds in times[0].costs_s]
            sys.stdout.write(json.dumps(row_of(name, workers, times)) + "\n")
            sys.stdout.flush()
    if options.record:
        options.record.write_text(json.dumps(recorded))
    return 0


if __name__ == "__main__":
    sys.exit(main())
