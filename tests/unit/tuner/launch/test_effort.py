"""What a launch costs besides measuring, what people see of it, and what forecasts and predictions say before it."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from threadpoolctl import threadpool_info

from chorale.runners.api.base import FailureKind, Measurement, RunRequest
from chorale.runners.simulated.library_model import library_algorithms, library_best, library_choice
from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.build.build import build
from chorale.synth.simulation.simulate import NetworkModel
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.schedule_files import load_topology
from chorale.tuner.launch.loop import Overhead, RequestBuilder
from chorale.tuner.launch.plan import (
    campaign_on,
    campaign_plan,
    first_guesses,
    format_duration,
    min_measuring_s,
    plan_lines,
)
from chorale.tuner.launch.tune import progress_display
from chorale.tuner.search.size_model import AcquisitionOptimizer
from chorale.tuner.search.space import search_space
from chorale.tuner.tracking import mlflow_store
from chorale.tuner.tracking.tracker import COURSE_STEP
from chorale.tuner.trials.records import Candidate, FailedTrial, PrunedTrial, TrialRecord
from tests.campaigns import complete, small_campaign
from tests.unit.tuner.launch.test_tuning import run


def test_effort_is_told_per_trial_and_measuring_has_a_least_time():
    effort = Overhead(trials=2, measuring_s=20.0, elapsed_s=30.0, cpu_s=7.0)
    expected = {"trials": 2, "measuring_ms": 10000.0, "beside_measuring_ms": 5000.0, "cpu_ms": 3500.0}
    assert effort.document() == expected
    # Allreduce moves 3/4 of the vector through each of two links per rank, twice: 3/4 of the vector's time on a link.
    campaign = small_campaign(runner={"kind": "local", "link_mbps": 8}, baselines=["ring"], repeats=3)
    least_s = 6 * 4 * 2 * (4096 + 65536) / 1e6 * 3 / 4
    assert min_measuring_s(campaign, load_topology("ring:4"), 6) == pytest.approx(least_s)
    assert campaign_plan(campaign, load_topology("ring:4"))["least_measuring_seconds"] == pytest.approx(least_s)


PER_TRIAL = {"create_run": 1, "log_batch": 1, "set_terminated": 1}
"""What MLflow is asked for each trial, besides its three files; of the launch and what it registers, less than 60."""


class CountingClient:
    """MLflow's client, and how often each of its methods was called, with what finalists and launches log besides."""

    def __init__(self, client: Any, calls: Counter[str]) -> None:
        self._client, self._calls = client, calls

    def log_batch(self, run_id: str, metrics: Sequence[Any], parameters: Sequence[Any], tags: Sequence[Any]) -> None:
        keys = {metric.key for metric in metrics}
        is_final = any(key.startswith("final_") for key in keys)
        self._calls["final" if is_final else "best_speedup" if "best_speedup" in keys else "log_batch"] += 1
        self._client.log_batch(run_id, metrics, parameters, tags)

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._client, name)


def test_mlflow_is_asked_three_times_a_trial(home, monkeypatch):
    calls: Counter[str] = Counter()
    connect = mlflow_store._connect
    monkeypatch.setattr(mlflow_store, "_connect", lambda uri: CountingClient(connect(uri), calls))
    counts = []
    for trials in (2, 6):
        calls.clear()
        assert len(run(home, small_campaign(budget={"trials": trials})).trials) == trials
        counts.append(Counter(calls))
    more = counts[1] - counts[0]
    assert {name: more[name] / 4 for name in PER_TRIAL} == PER_TRIAL
    assert 1 <= counts[1]["best_speedup"] <= 6 / COURSE_STEP + 1
    assert sum(counts[1].values()) < sum(PER_TRIAL.values()) * 6 + 60


def test_the_search_computes_in_one_thread(monkeypatch):
    seen: list[int] = []

    def spy(self: AcquisitionOptimizer, *arguments: Any) -> str:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return "a point"

    monkeypatch.setattr(AcquisitionOptimizer, "_next", spy)
    AcquisitionOptimizer([], [4096], together=False, seed=0).next({}, [], [])
    assert set(seen) == {1}


def test_the_plan_says_what_ends_the_search():
    def plan(**keys: Any) -> dict[str, Any]:
        return campaign_plan(small_campaign(**keys), load_topology("ring:4"))

    assert (plan(budget={"trials": 8})["stopped_by"], plan()["at_most_seconds"]) == ("budget.trials", None)
    assert plan(budget={"trials": 1000})["stopped_by"] == "the search space"
    limited = plan(budget={"trials": 8, "minutes": 1}, final={"minutes": 0.5})
    assert (limited["stopped_by"], limited["at_most_seconds"]) == ("budget.trials or budget.minutes", 90.0)
    assert "search at most 60 s, final at most 30 s" in "\n".join(plan_lines(limited))
    durations = {0.44: "0.4 s", 35.2: "35 s", 245.0: "4:05 min", 7800.0: "2:10 h"}
    assert {seconds: format_duration(seconds) for seconds in durations} == durations


TRIAL = complete(Candidate("bfb", chunks=2), time_s=1.0)
HUNG = FailedTrial("a", 2, Candidate("ring"), 1e9, 1.0, FailureKind.TIMEOUT, "hung")
PRUNED = PrunedTrial("b", 3, Candidate("ring", k=2), 1e9, 1.0, "no trees")


def test_lines_count_and_estimate_also_for_resumed_launches_and_limits():
    def shown(budget: int, *trials: TrialRecord, known: Sequence[TrialRecord] = (), **limits: float) -> list[str]:
        people = io.StringIO()
        progress = progress_display(Console(file=people, width=200), budget, known, **limits)
        for trial in trials:
            progress.trial(trial)
        return people.getvalue().splitlines()

    assert shown(10, replace(TRIAL, seconds=5.0), replace(HUNG, seconds=15.0), PRUNED) == [
        "bfb chunks=2: 2.00x (4KiB 1000 ms, 64KiB 2000 ms)  (trial 1/10, about 0:45 left, best 2.00x bfb chunks=2)",
        "ring: failed, timeout: hung  (trial 2/10, about 1:00 left, best 2.00x bfb chunks=2)",
        "ring k=2: pruned: no trees  (trial 3/10, about 0:35 left, best 2.00x bfb chunks=2)",
    ]
    known = [replace(TRIAL, started_unix_s=1e9 + 10 * number, trial_id=str(number)) for number in range(4)]
    [line] = shown(10, replace(HUNG, started_unix_s=2e9), known=known)
    assert line.endswith("(trial 5/10, about 0:05 left, best 2.00x bfb chunks=2)")
    assert "about 0:20 left" in shown(100, replace(TRIAL, seconds=10.0), limit_s=30.0)[0]


def on_network(topology: str, kind: str, **keys: Any) -> Campaign:
    campaign = Campaign.model_validate({"topology": topology, "runner": {"kind": kind}, **keys})
    return campaign_on(campaign, load_topology(topology))


def test_the_baseline_is_what_the_library_does():
    baselines = {
        ("hypercube:3", "local", "allreduce"): ["rabenseifner"],
        ("complete:6", "simulated", "allreduce"): ["ring"],  # others of MPI's need a power of two
        ("h100:1", "simulated", "allreduce"): ["library:modelled", "rabenseifner"],
        ("h100:1", "nccl", "allgather"): ["library:nccl"],
        ("a100:1", "msccl", "allreduce"): ["library:nccl"],
        ("torus:2x2", "mpi", "broadcast"): ["library:mpi"],
        ("torus:2x2", "oneccl", "allgather"): ["library:ring", "library:flat"],
        ("mi250half:1", "recorded", "allreduce"): ["library:rccl"],
        ("hypercube:3", "simulated", "alltoall"): ["alltoall"],
    }
    found = {case: on_network(*case[:2], collective=case[2]).baselines for case in baselines}
    assert found == baselines


def test_what_is_tried_first_depends_on_the_size():
    runner = {"kind": "simulated", "link_latency_us": 5}
    first = {}
    for size in ("64B", "64MiB"):
        keys = {"runner": runner, "sizes": [size], "search": {"methods": ["ring", "bfb", "recursive-doubling"]}}
        campaign, topology = on_network("hypercube:4", "simulated", **keys), load_topology("hypercube:4")
        guesses = first_guesses(campaign, topology, search_space(campaign, topology))
        assert {guess.method for guess in guesses} == set(keys["search"]["methods"])
        first[size] = guesses[0].method
    assert first == {"64B": "recursive-doubling", "64MiB": "bfb"}


@pytest.mark.parametrize("alpha_us", [0, 10])
def test_the_library_is_simulated_by_its_published_model(alpha_us):
    topology, sizes = load_topology("h100:1"), (2**12, 2**28)
    built = build(RequestBuilder(on_network("h100:1", "simulated"), topology).build(Candidate("ring")))
    request = RunRequest(topology, {"ring": built.program}, sizes, repeats=2, library=("modelled",))
    outcome = SimulatedRunner(NetworkModel.of(alpha_us=alpha_us)).submit(request)
    assert isinstance(outcome, Measurement)
    algorithms = library_algorithms(topology)
    for size, result in zip(sizes, outcome.results["library:modelled"], strict=True):
        # Without latencies of messages, the library's are left out, too: only rates are compared
        model_s = library_choice(algorithms, size).seconds(size)
        expected_s = model_s if alpha_us else size / library_best(algorithms).bytes_per_s
        assert result.times_s == pytest.approx([expected_s] * 2)
