"""A detached launch on a cluster of three nodes, while workers, nodes, the launch itself and MLflow are killed.

`python -m tests.integration.soak FOLDER --trials 500 --faults 40` prints one JSON document: what was killed, and how
what was measured, saved, tracked and chosen compares with a run without faults. The campaign tries every point of its
search space with the simulated runner, so that the right answer does not depend on the order of trials.
"""

import argparse
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from chorale.runners.ray.detached import DetachedActors
from chorale.runners.ray.workers import MeasureWorker
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.cli.tune_launch import start
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.detached import DetachedLaunch, LaunchState, LaunchStatus, detached_name
from chorale.tuner.launch.progress import PlainLines
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.search.space import search_space
from chorale.tuner.tracking.mlflow_store import MlflowStore, load_mlflow
from chorale.tuner.tracking.tracker import TRIAL_ID
from chorale.tuner.trials.records import CompleteTrial, SizeResult, TrialRecord
from chorale.tuner.trials.store import Store
from tests.fakes import InlineWorkers
from tests.integration.mlflow_server import address, free_port, kill_group, start_server, wait_until_healthy
from tests.integration.two_nodes import cluster_of

WORKERS = (MeasureWorker.__name__, "BuildWorker", DetachedLaunch.__name__)
POLL_S = 0.5
OUTAGE_S = 15.0
LIMIT_S = 3600.0


def soak_campaign(trials: int, uri: str) -> Campaign:
    """Return a campaign whose search space has at least `trials` points, all of which are tried."""
    return Campaign.model_validate(
        {
            "name": "soak",
            "topology": "ring:4",
            "collective": "allreduce",
            "sizes": ["64KiB", "1MiB"],
            "runner": {"kind": "simulated", "alpha_us": 3},
            "search": {
                "methods": ["bfb", "ring", "biring", "swing", "recursive-doubling"],
                "chunks": {"from": 1, "to": -(-trials // 50)},
                "channels": {"from": 1, "to": 5},
                "instances": [1, 2],
            },
            "budget": {"trials": 10**6},
            "sampler": "random",
            "repeats": 1,
            "tracking": {"mlflow_uri": uri},
        }
    )


@dataclass
class Chaos:
    """Kills something at every call; everything that it kills comes back, except what must be made again by others."""

    cluster: Any
    nodes: list[Any]
    home: Home
    port: int
    random: random.Random
    server: subprocess.Popen[bytes]
    faults: Counter[str] = field(default_factory=Counter)
    server_back_s: float = 0.0

    def strike(self) -> None:
        kind = self.random.choices(("worker", "node", "mlflow"), (8, 2, 1))[0]
        getattr(self, f"_strike_{kind}")()

    def mend(self, wait: bool = False) -> None:
        """Start the server again when its time has come."""
        if self.server.poll() is not None and (wait or time.monotonic() > self.server_back_s):
            self.server = start_server(self.home, self.port)

    def _strike_worker(self) -> None:
        found = self._workers()
        if found:
            kind, process = self.random.choice(found)
            process.kill()
            self.faults[kind] += 1

    def _strike_node(self) -> None:
        if len(self.nodes) < 2:
            self.nodes.append(self.cluster.add_node(num_cpus=2))
            return
        node = self.nodes.pop(self.random.randrange(len(self.nodes)))
        self.cluster.remove_node(node, allow_graceful=False)
        self.faults["node"] += 1
        with suppress(Exception):  # Ray's helper gives up on a node that is slow to start; two are enough to go on
            self.nodes.append(self.cluster.add_node(num_cpus=2))

    def _strike_mlflow(self) -> None:
        if self.server.poll() is None:
            kill_group(self.server)
            self.server_back_s = time.monotonic() + OUTAGE_S
            self.faults["MLflow server"] += 1

    def _workers(self) -> list[tuple[str, psutil.Process]]:
        found = []
        for node in [self.cluster.head_node, *self.nodes]:
            raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
            for process in raylet.children(recursive=True):
                with suppress(psutil.Error):  # it may be gone by now
                    line = " ".join(process.cmdline())
                    found += [(kind, process) for kind in WORKERS if f"ray::{kind}" in line]
        return found


def reference(campaign: Campaign, home: Home) -> TuneReport:
    """Return the report of the same campaign without a cluster, a server or a fault."""
    workers = InlineWorkers(SimulatedRunner(NetworkModel.of(alpha_us=3, link_gbps=1)))
    progress = lambda budget, done: PlainLines(Console(quiet=True), budget, done)  # noqa: E731 (a callback)
    calm = campaign.model_copy(update={"tracking": campaign.tracking.model_copy(update={"mlflow_uri": None})})
    return tune(calm, load_topology(campaign.topology), home, False, lambda: workers, progress)


def stormy(campaign: Campaign, chaos: Chaos, faults: int) -> TuneReport:
    """Return the report of a detached launch of `campaign` during about `faults` faults, spread over its trials."""
    start(campaign, resume=False, address=chaos.cluster.address)
    points = len(search_space(campaign, load_topology(campaign.topology)).points)
    next_strike = 1
    deadline_s = time.monotonic() + LIMIT_S
    with DetachedActors(chaos.cluster.address) as residents:
        resident = residents.find(detached_name(campaign.name))
        assert resident is not None
        while True:
            status: LaunchStatus = resident.call("status", 10**9)
            if status.state != LaunchState.RUNNING:
                break
            assert time.monotonic() < deadline_s, status
            time.sleep(POLL_S)
            chaos.mend()
            if status.done >= next_strike:  # counted in trials: a slow machine is not killed more often
                chaos.strike()
                next_strike = status.done + chaos.random.randint(1, 2 * points // faults)
            print(f"{status.done} trials, {dict(chaos.faults)}", file=sys.stderr)  # noqa: T201
        assert status.error is None, status.error
        report: TuneReport = resident.call("report")
        resident.remove()
    return report


def saved(folder: Path) -> list[TrialRecord]:
    store = Store(folder)
    store.close()
    return store.trials


def tracked(uri: str, home: Home) -> Counter[str]:
    """Return how many runs that are finished MLflow has of each trial."""
    MlflowStore(uri, home.artifacts)
    client = load_mlflow().MlflowClient(uri)
    found: Counter[str] = Counter()
    token = None
    while True:
        page = client.search_runs([client.get_experiment_by_name("soak").experiment_id], page_token=token)
        found.update(
            run.data.tags[TRIAL_ID] for run in page if TRIAL_ID in run.data.tags and run.info.status == "FINISHED"
        )
        token = page.token
        if not token:
            return found


def best_per_size(report: TuneReport) -> list[tuple[SizeResult, CompleteTrial]]:
    """Return (result, trial) of the highest speed-up at each size, in the order of the sizes."""
    rows = []
    for index in range(len(report.ranked_trials[0].sizes) if report.ranked_trials else 0):
        # Among equals the earlier trial wins, as in the registry.
        best = max(report.ranked_trials, key=lambda ranked: (ranked.sizes[index].speedup, -ranked.trial.number))
        rows.append((best.sizes[index], best.trial))
    return rows


def answer(report: TuneReport) -> list[tuple[int, float, float]]:
    """Return (size, time, speed-up) of the best at every size."""
    return [(size.size_bytes, size.median_s, size.speedup) for size, _ in best_per_size(report)]


def same_measurements(trials: list[TrialRecord], others: list[TrialRecord]) -> bool:
    """Whether both have the same candidates with the same states and times.

    Which references are measured beside a trial depends on those before it, and a size is rounded up for all that are
    measured at it: by less than a thousandth here.
    """
    found, expected = by_candidate(trials), by_candidate(others)
    return found.keys() == expected.keys() and all(_alike(found[key], expected[key]) for key in found)


def by_candidate(trials: list[TrialRecord]) -> dict[str, TrialRecord]:
    return {str(trial.candidate): trial for trial in trials}


def _alike(trial: TrialRecord, other: TrialRecord) -> bool:
    times, expected = _times(trial), _times(other)
    return (
        trial.state == other.state
        and times.keys() == expected.keys()
        and all(
            math.isclose(seconds, wanted, rel_tol=1e-3)
            for key in times
            for seconds in times[key]
            for wanted in expected[key]
        )
    )


def _times(trial: TrialRecord) -> dict[tuple[int, str], tuple[float, ...]]:
    """Return what the candidate, named "", and its references took, by size."""
    return {
        (size.size_bytes, name): tuple(set(seconds))
        for size in getattr(trial, "sizes", ())
        for name, seconds in {"": size.times_s, **size.baseline_times_s}.items()
    }


def main(folder: Path, trials: int, faults: int, seed: int) -> dict[str, Any]:
    home, calm_home = Home(folder / "home"), Home(folder / "calm")
    for place in (home, calm_home):
        place.create(place.root)
    os.environ["CHORALE_HOME"] = str(home.root)
    port = free_port()
    uri = address(home, port)
    campaign = soak_campaign(trials, uri)
    server = start_server(home, port)
    wait_until_healthy(port, server)
    with cluster_of(3) as (cluster, others):
        chaos = Chaos(cluster, others, home, port, random.Random(seed), server)
        began_s = time.monotonic()
        try:
            report = stormy(campaign, chaos, faults)
            seconds = time.monotonic() - began_s
            chaos.mend(wait=True)
            wait_until_healthy(port, chaos.server)
            runs = tracked(uri, home)
        finally:
            kill_group(chaos.server)
    records = saved(report.folder)
    shutil.copy(home.root / "server.log", folder / "server.log")
    expected = reference(campaign, calm_home)
    return {
        "faults": dict(chaos.faults),
        "points": len(search_space(campaign, load_topology(campaign.topology)).points),
        "saved": len(records),
        "saved_once": len({record.trial_id for record in records}) == len(records),
        "states": dict(Counter(record.state for record in records)),
        "tracked": len(runs),
        "tracked_once": set(runs.values()) == {1} and set(runs) == {record.trial_id for record in records},
        "tracking_problem": report.tracked.problem,
        "same_measurements": same_measurements(records, list(expected.trials)),
        "answer": answer(report),
        "same_answer": answer(report) == answer(expected),
        "seconds": round(seconds, 1),
        "seconds_without_faults": round(expected.seconds, 1),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(main(given.folder, given.trials, given.faults, given.seed)))  # noqa: T201
