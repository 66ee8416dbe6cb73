"""Measures how Ray workers speed up synthesis and campaigns, and how synthesis time grows with network size."""

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from chorale.experiments.framework.experiment import Column, Experiment, Row, columns, growth_exponent, min_seconds
from chorale.experiments.framework.plots import Chart, line_points
from chorale.synth.bounds.optimum import optimum
from chorale.synth.collective import ALLGATHER
from chorale.synth.executor.base import Executor, SerialExecutor
from chorale.synth.finder.find import FinderQuery, find_all
from chorale.synth.identity import content_id
from chorale.synth.methods.bfb.bfb import symmetric_bfb
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.processors import core_count
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.building import open_executor
from chorale.tuner.files.home import Home

# ruff: noqa: PLC0415
# Ray, Optuna and MLflow take seconds to import, and a list of experiments needs none of them.

_ROUNDS, _CAMPAIGN_ROUNDS = 5, 2
"""Number of rounds. Each round measures every worker count, so that other load affects all of them equally."""
_FIRST_NODES, _LAST_NODES = 5, 1200
_PER_WORKER = 2
"""Number of CPUs that one campaign worker needs, because it both prepares and measures programs."""


def _schedule(method: str, spec: str, executor: Executor) -> str:
    return synthesize_unverified(method, parse_topology(spec), ALLGATHER, None, executor).id


def _finder(executor: Executor) -> str:
    found = find_all([FinderQuery(nodes, 4) for nodes in range(_FIRST_NODES, _LAST_NODES + 1)], executor)
    return content_id({str(query.nodes): [one.spec for one in frontier] for query, frontier in found.items()})


_SYNTHESIS: Mapping[str, Callable[[Executor], str]] = {
    "BFB on genkautz:4,4000": partial(_schedule, "bfb", "genkautz:4,4000"),
    f"frontiers of {_FIRST_NODES} to {_LAST_NODES} nodes": _finder,
}
"""Task -> function that performs it on an executor and returns a digest of the result."""
_QUICK = ("BFB on genkautz:4,4000",)
_CAMPAIGN = "a campaign on torus:4x4"


@dataclass(frozen=True, slots=True)
class _Timed:
    """A timed computation: its seconds, and a digest of its result, which must not depend on the number of workers."""

    seconds: float
    answer: str


_Round = Mapping[int, _Timed]
"""Times by number of workers; 0 means in this process, without Ray."""
_WITHOUT = 0


def _answer(task: str) -> list[Row]:
    from chorale.runners.ray.cluster import RayCluster

    counts = worker_counts(core_count())
    with RayCluster(cpus=max(sum(counts), _PER_WORKER * counts[-1])):
        if task == _CAMPAIGN:
            rounds: list[_Round] = [
                {each: _campaign(each, number) for each in counts} for number in range(_CAMPAIGN_ROUNDS)
            ]
        else:
            rounds = _synthesis_rounds(_SYNTHESIS[task], counts)
    return [_row(task, workers, rounds) for workers in counts]


def worker_counts(cores: int) -> list[int]:
    """Return the worker counts to try: the powers of two below the number of cores, and that number itself."""
    counts = [1]
    while counts[-1] * 2 < cores:
        counts.append(counts[-1] * 2)
    return counts if cores == 1 else [*counts, cores]


def _synthesis_rounds(make: Callable[[Executor], str], counts: Sequence[int]) -> list[_Round]:
    def timed(executor: Executor) -> _Timed:
        begun = time.perf_counter()
        answer = make(executor)
        return _Timed(time.perf_counter() - begun, answer)

    with ExitStack() as stack:
        executors: dict[int, Executor] = {_WITHOUT: SerialExecutor()}
        executors |= {workers: stack.enter_context(open_executor("ray", workers)) for workers in counts}
        for executor in executors.values():
            make(executor)  # workers start and load compiled code before timing
        return [{workers: timed(executor) for workers, executor in executors.items()} for _ in range(_ROUNDS)]


def _campaign(workers: int, number: int) -> _Timed:
    """Time a campaign that tries all its candidates. The time to start Ray and MLflow is not included."""
    from rich.console import Console

    from chorale.tuner.config.campaign import Campaign, make_workers
    from chorale.tuner.launch.tune import progress_display, tune

    name, numbers = f"strong-scaling-{workers}-{number}", [1, 2, 3, 4]
    search = {"methods": ["bfb", "ring"], "chunks": numbers, "channels": numbers, "instances": [1, 2]}
    campaign = Campaign.model_validate({
        "name": name, "topology": "torus:4x4", "collective": "allreduce", "sizes": ["64KiB", "1MiB"],
        "runner": {"kind": "simulated", "alpha_us": 3, "at_once": workers}, "search": search, "sampler": "grid",
        "budget": {"trials": 1000}, "repeats": 1, "parallel": workers, "register": {"model": name},
    })  # fmt: skip
    topology, silent = parse_topology(campaign.topology), Console(quiet=True)
    with tempfile.TemporaryDirectory() as folder:  # a new one, because campaigns in the same data folder reuse programs
        home = Home(Path(folder))
        make = make_workers(campaign, topology, home.root)
        made = tune(campaign, topology, home, False, make, lambda *trials: progress_display(silent, *trials))
    effort = made.overhead
    seconds = effort["trials"] * (effort["beside_measuring_ms"] + effort["measuring_ms"]) / 1000
    times = {
        str(one.candidate): [size.median_s for size in one.sizes] for one in made.trials if one.state == "complete"
    }
    return _Timed(seconds, content_id({name: list(map(str, of_sizes)) for name, of_sizes in sorted(times.items())}))


def _row(task: str, workers: int, rounds: Sequence[_Round]) -> Row:
    ratios = [turn[1].seconds / turn[workers].seconds for turn in rounds]
    over_none = [turn[_WITHOUT].seconds / turn[workers].seconds for turn in rounds if _WITHOUT in turn]
    same = all(turn[workers].answer == first.answer for turn in rounds for first in rounds[0].values())
    return {
        "task": task,
        "workers": workers,
        "cores": core_count(),
        "speedup": median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "over_none": median(over_none) if over_none else None,
        "load_average": os.getloadavg()[0],
        "reason": None if same else "another answer than one worker gives",
        "holds": same,
    }


STRONG_SCALING = Experiment(
    name="strong-scaling",
    question="How much faster are synthesis and campaigns with more Ray workers?",
    source="ours; processes of one machine, up to one per core; medians of ratios to one worker in the same round",
    columns=columns(
        "task | workers | cores here=cores | times as fast=speedup:.2f",
        Column("least and most", lambda row: f"{row['least']:.2f}, {row['most']:.2f}"),
        "as without Ray=over_none:.2f",
        Column("per worker", lambda row: f"{row['speedup'] / row['workers']:.0%}"),
        "load=load_average:.1f | reason",
    ),
    cases=[*_SYNTHESIS, _CAMPAIGN],  # each is computed with increasing worker counts
    quick=[name for name in _SYNTHESIS if name in _QUICK],
    evaluate=_answer,
    alone=True,
    plot=Chart(
        line_points("{cores} cores", "{task}", "workers", "speedup"), "Ray workers", "times as fast as one", log=""
    ),
)


def _symmetric_bfb(topology: Topology) -> None:
    symmetric_bfb(topology, ALLGATHER, SerialExecutor())


_CASES: Mapping[str, tuple[Callable[[Topology], object], tuple[str, ...]]] = {
    "BFB by symmetry, 2D tori": (_symmetric_bfb, tuple(f"torus:{n}x{n}" for n in (4, 8, 16, 32, 64, 128))),
    "BFB by symmetry, hypercubes": (_symmetric_bfb, tuple(f"hypercube:{n}" for n in (4, 6, 8, 10, 12, 14))),
    "forest, boxes of A100": (
        lambda network: synthesize_unverified("forest", network, ALLGATHER, None, SerialExecutor()),
        tuple(f"a100:{boxes}" for boxes in (2, 4, 8, 16, 32, 64)),
    ),
    "optimum, boxes of A100": (
        lambda network: optimum(network, ALLGATHER),
        tuple(f"a100:{boxes}" for boxes in (2, 4, 8, 16, 32, 64, 128)),
    ),
}
_NETWORKS = [(title, spec) for title, (_, specs) in _CASES.items() for spec in specs]
_SLOW = (
    *("torus:32x32", "torus:64x64", "torus:128x128", "hypercube:10", "hypercube:12", "hypercube:14"),
    *("a100:64", "a100:128"),
)
"""Networks with more than 256 ranks."""
_LARGEST = 3
"""Number of networks to which the exponent is fitted: only the largest, because start-up dominates on small ones."""


_REPEATS = 3


def _seconds_of(case: tuple[str, str]) -> Mapping[str, Any]:
    title, spec = case
    make, specs = _CASES[title]
    make(parse_topology(specs[0]))  # loads compiled code before the clock starts
    topology = parse_topology(spec)
    return {"case": title, "nodes": topology.compute_count, "spec": spec, "seconds": _seconds(make, topology)}


def _seconds(make: Callable[[Topology], object], topology: Topology) -> float:
    return min_seconds(lambda: make(topology), _REPEATS, time.process_time)


def _conclude(parts: Sequence[Mapping[str, Any]]) -> list[Row]:
    rows: list[Row] = []
    for title in _CASES:
        times = [part for part in parts if part["case"] == title]
        tail = times[-_LARGEST:]
        exponent = growth_exponent([one["nodes"] for one in tail], [one["seconds"] for one in tail])
        rows += [
            {"case": title, "nodes": one["nodes"], "spec": one["spec"],
             "times_the_first": one["seconds"] / times[0]["seconds"],
             "exponent": exponent if one is times[-1] else None, "reason": None, "holds": True}
            for one in times
        ]  # fmt: skip
    return rows


SYNTHESIS_SCALING = Experiment(
    name="synthesis-scaling",
    question="With which power of the number of ranks does the time of synthesis grow, to 16,384 ranks?",
    source="ours; CPU time over that of the smallest network of the same run",
    columns=columns(
        "case | ranks=nodes | spec | times as long as the first=times_the_first:.3g",
        f"exponent over the largest {_LARGEST}=exponent:.2f",
    ),
    cases=_NETWORKS,
    quick=[case for case in _NETWORKS if case[1] not in _SLOW],
    evaluate=_seconds_of,
    conclude=_conclude,
    alone=True,
    plot=Chart(
        line_points("synthesis", "{case}", "nodes", "times_the_first"), "ranks", "times as long as the smallest"
    ),
)
