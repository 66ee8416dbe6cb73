"""What a launch costs besides measuring, counted: requests to MLflow, syntheses, threads of the search."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from threadpoolctl import threadpool_info

from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.progress import PlainLines
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.search.size_model import AcquisitionOptimizer
from chorale.tuner.tracking import mlflow_store
from chorale.tuner.tracking.tracker import COURSE_STEP
from tests.campaigns import small_campaign
from tests.fakes import InlineWorkers
from tests.unit.tuner.launch.test_tuning import SILENT, simulated

PER_TRIAL = {"create_run": 1, "log_batch": 1, "set_terminated": 1}
"""What MLflow is asked for each trial, besides its three files."""

PER_LAUNCH = 60
"""What it is asked for the launch itself and the two size classes that it registers, at most."""


class CountingClient:
    """MLflow's client, and how often each of its methods was called."""

    def __init__(self, client: Any, calls: Counter[str]) -> None:
        self._client = client
        self._calls = calls

    def log_batch(self, run_id: str, metrics: Sequence[Any], parameters: Sequence[Any], tags: Sequence[Any]) -> None:
        """Finalists have a second batch at the end, of their results; the run of the launch one for several trials."""
        keys = {metric.key for metric in metrics}
        in_final = any(key.startswith("final_") for key in keys)
        self._calls["log_final" if in_final else "log_course" if "best_speedup" in keys else "log_batch"] += 1
        self._client.log_batch(run_id, metrics, parameters, tags)

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._client, name)


def launched(home: Home, campaign: Campaign) -> tuple[TuneReport, InlineWorkers]:
    workers = InlineWorkers(simulated())
    progress = lambda budget, known: PlainLines(SILENT, budget, known)  # noqa: E731 (a callback)
    return tune(campaign, load_topology(campaign.topology), home, False, lambda: workers, progress), workers


def test_mlflow_is_asked_three_times_a_trial(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: Counter[str] = Counter()
    connect = mlflow_store._connect
    monkeypatch.setattr(mlflow_store, "_connect", lambda uri: CountingClient(connect(uri), calls))
    counts = []
    for trials in (2, 6):
        calls.clear()
        report, _ = launched(home, small_campaign(budget={"trials": trials}))
        assert len(report.trials) == trials
        counts.append(Counter(calls))
    more = counts[1] - counts[0]
    assert {name: more[name] / 4 for name in PER_TRIAL} == PER_TRIAL
    assert 1 <= counts[1]["log_course"] <= 6 / COURSE_STEP + 1
    assert sum(counts[1].values()) < sum(PER_TRIAL.values()) * 6 + PER_LAUNCH


def test_the_search_computes_in_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(self: AcquisitionOptimizer, *arguments: Any) -> str:
        seen.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        return "a point"

    monkeypatch.setattr(AcquisitionOptimizer, "_next", spy)
    AcquisitionOptimizer([], [4096], together=False, seed=0).next({}, [], [])
    assert set(seen) == {1}
