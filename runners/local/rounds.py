"""The measurement itself: interleaved rounds on a common clock, every result checked."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from fractions import Fraction

from runners.api import FailureKind, RunRequest, SizeMeasurement
from runners.element_types import ELEMENT_TYPES
from runners.local.failure import RunStopped
from runners.local.fleet import Fleet
from runners.local.plan import encode_plan, node_plans
from runners.sizes import divisible_size
from synth.lowering.program import Program
from synth.topology.topology import Topology

_LEAD_S = 0.008  # from the order to start until the start, so that every rank has heard it
_LEAD_PER_NODE_S = 0.0002


class Rounds:
    """Runs the loaded programs of `request`, known to the nodes by their position, on `fleet`."""

    def __init__(self, fleet: Fleet, request: RunRequest, deadline: float) -> None:
        self._fleet = fleet
        self._request = request
        self._deadline = deadline
        self._names = list(request.programs)
        self._random = random.Random(request.seed)  # noqa: S311 - an order, not a secret
        self._runs = 0

    def measure(self) -> dict[str, tuple[SizeMeasurement, ...]]:
        """Return the measurements per program, one per size in the order of the request."""
        results: dict[str, list[SizeMeasurement]] = {name: [] for name in self._names}
        for requested_bytes in self._request.sizes_bytes:
            element_bytes = ELEMENT_TYPES[self._request.dtype].dtype.itemsize
            counts = [program.chunks for program in self._request.programs.values()]
            size_bytes = divisible_size(requested_bytes, element_bytes, counts)
            times_s = self._measure_size(size_bytes // element_bytes)
            for name in self._names:
                results[name].append(SizeMeasurement(size_bytes, requested_bytes, tuple(times_s[name]), correct=True))
        return {name: tuple(sizes) for name, sizes in results.items()}

    def _measure_size(self, elements: int) -> dict[str, list[float]]:
        times_s: dict[str, list[float]] = {name: [] for name in self._names}
        for round_number in range(-self._request.warmup, self._request.repeats):
            for program in self._random.sample(range(len(self._names)), len(self._names)):
                seconds = self._run_once(program, elements)
                if round_number >= 0:
                    times_s[self._names[program]].append(seconds)
        return times_s

    def _run_once(self, program: int, elements: int) -> float:
        """Return the seconds from the common start to the last rank's end."""
        self._runs += 1
        task = {"do": "prepare", "program": program, "elements": elements, "dtype": self._request.dtype}
        task |= {"run": self._runs, "seed": self._request.seed}
        doing = f"program {self._names[program]} ran on {elements} elements"
        seconds = timed_run(self._fleet, task, self._deadline, doing)
        answers = self._fleet.ask({"do": "check"}, self._deadline, f"checking what {doing}")
        wrong = {rank: answer["complaint"] for rank, answer in answers.items() if answer["complaint"]}
        if wrong:
            rank = min(wrong)
            message = f"{doing} and gave a wrong result on {len(wrong)} of {len(self._fleet.ranks)} ranks"
            raise RunStopped(FailureKind.WRONG_RESULT, f"{message}; rank {rank}: {wrong[rank]}", rank)
        return seconds


def timed_run(fleet: Fleet, task: dict[str, object], deadline: float, doing: str) -> float:
    """Prepare and run what `task` says on all ranks; return the seconds from the common start to the last end."""
    fleet.ask(task, deadline, f"the data were prepared: {doing}")
    start = time.monotonic() + _LEAD_S + _LEAD_PER_NODE_S * len(fleet.nodes)
    fleet.tell({"do": "go", "at": start}, deadline)
    ends = fleet.answers(fleet.ranks, deadline, doing)
    return float(max(answer["end"] for answer in ends.values()) - start)


def load_programs(
    fleet: Fleet, topology: Topology, programs: Iterable[Program], link_mbps: float, deadline: float
) -> None:
    """Give every node its part of each of `programs` and the pace of its links."""
    plans = [[encode_plan(plan) for plan in node_plans(program, topology)] for program in programs]
    paces: list[list[tuple[int, float]]] = [[] for _ in fleet.nodes]
    for link, seconds in enumerate(seconds_per_byte(topology, link_mbps)):
        paces[int(topology.links.src[link])].append((link, seconds))
    commands = [
        {"do": "load", "plans": [program[node] for program in plans], "seconds_per_byte": paces[node]}
        for node in fleet.nodes
    ]
    fleet.ask(commands, deadline, "the programs were loaded")


def seconds_per_byte(topology: Topology, link_mbps: float) -> list[float]:
    """Return the pace of every link.

    `link_mbps` is the rate of a link of bandwidth 1 where the unit is links, else of the fastest link: GB/s
    fabrics run as scale models with the right proportions.
    """
    full = Fraction(1) if topology.bandwidth_unit == "link" else max(topology.links.bandwidths)
    table = [8 / (link_mbps * 1e6 * float(bandwidth / full)) for bandwidth in topology.links.bandwidths]
    return [table[index] for index in topology.links.bandwidth_class.tolist()]
