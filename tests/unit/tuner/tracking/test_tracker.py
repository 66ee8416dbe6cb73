"""The tracker with a store that fails at chosen calls: everything is told in the end, once."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chorale.synth.errors import Unavailable
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.tracking.mlflow_store import MlflowStore, RunState, load_mlflow
from chorale.tuner.tracking.tracker import LAUNCH_ID, LONGEST_PAUSE_S, TRIAL_ID, Tracker, TrackingResult
from chorale.tuner.trials.journal import Launch
from chorale.tuner.trials.records import Candidate
from chorale.tuner.trials.store import Store
from tests.campaigns import complete, small_campaign

LAUNCH = Launch("launch", 1, {}, {"name": "small"}, 1e9)
TRIALS = [complete(Candidate("bfb", channels=number), number=number) for number in range(1, 6)]
STEPS = ("start_run", "log", "upload", "end_run")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path, LAUNCH)
    yield store
    store.close()


def track(home: Home, store: Store, clock: Callable[[], float]) -> TrackingResult:
    campaign = small_campaign()
    tracker = Tracker(home, campaign, load_topology(campaign.topology), store, clock)
    tracker.start()
    for trial in TRIALS:
        store.add(trial)
        tracker.trial(trial)
    return tracker.finish(store.trials, None, "FINISHED", 60.0)


def runs_in_mlflow(home: Home) -> list[Any]:
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    experiment = client.get_experiment_by_name("small")
    return [run for run in client.search_runs([experiment.experiment_id]) if TRIAL_ID in run.data.tags]


@pytest.mark.parametrize("lost_answer", [False, True])
@pytest.mark.parametrize("step", STEPS)
def test_after_an_outage_every_trial_is_told_once(
    home: Home, store: Store, monkeypatch: pytest.MonkeyPatch, step: str, lost_answer: bool
) -> None:
    """The third call of `step` fails, before it reaches MLflow or, with a lost answer, after it was done."""
    calls = [0]
    genuine = getattr(MlflowStore, step)

    def broken(self: MlflowStore, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] != 3:
            return genuine(self, *arguments, **named)
        if lost_answer:
            genuine(self, *arguments, **named)
        raise Unavailable("MLflow cannot be reached", "the network", "wait")

    monkeypatch.setattr(MlflowStore, step, broken)
    tracked = track(home, store, lambda: 0.0)
    assert tracked.problem is None
    found = runs_in_mlflow(home)
    assert sorted(run.data.tags[TRIAL_ID] for run in found) == sorted(trial.trial_id for trial in TRIALS)
    assert {run.info.run_id for run in found} == set(tracked.run_ids.values())
    assert {run.info.status for run in found} == {"FINISHED"}


def test_trials_wait_while_mlflow_is_away_and_follow_when_it_is_back(
    home: Home, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each reading of the clock is a minute later, so the pause is over with the next trial."""
    minutes = iter(range(1000))
    outages = iter([True, True, False])
    genuine = MlflowStore.upload

    def broken(self: MlflowStore, run_id: str, files: dict[str, bytes]) -> None:
        if "campaign.json" not in files and next(outages, False):
            raise Unavailable("MLflow cannot be reached", "the network", "wait")
        genuine(self, run_id, files)

    monkeypatch.setattr(MlflowStore, "upload", broken)
    tracked = track(home, store, lambda: LONGEST_PAUSE_S * next(minutes))
    assert tracked.problem is None
    assert len(tracked.run_ids) == len(runs_in_mlflow(home)) == len(TRIALS)
    assert tracked.seconds > 0


def test_who_can_wait_reaches_mlflow_after_the_end(home: Home, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    outages = iter([True] * 3)
    genuine = MlflowStore.experiment

    def broken(self: MlflowStore, name: str) -> str:
        if next(outages, False):
            raise Unavailable("MLflow cannot be reached", "the network", "wait")
        return genuine(self, name)

    monkeypatch.setattr(MlflowStore, "experiment", broken)
    campaign = small_campaign()
    tracker = Tracker(home, campaign, load_topology(campaign.topology), store, lambda: 0.0)
    tracker.start()
    for trial in TRIALS:
        store.add(trial)
    asked: list[bool] = []
    tracked = tracker.finish(store.trials, None, "FINISHED", 60.0, lambda: asked.append(True) or True)
    assert len(asked) == 2  # the first outage was at the start, the second and third at the end
    assert tracked.problem is None
    assert len(runs_in_mlflow(home)) == len(TRIALS)


def test_runs_that_were_made_twice_are_one_again(home: Home) -> None:
    mlflow = MlflowStore(home.mlflow_uri, home.artifacts)
    experiment_id = mlflow.experiment("small")
    tags = {LAUNCH_ID: "launch", TRIAL_ID: "trial"}
    doubles = [mlflow.start_run(experiment_id, "double", tags, 0) for _ in range(3)]
    mlflow.end_run(doubles[1], "FINISHED")
    kept = mlflow.runs(experiment_id, LAUNCH_ID, "launch", TRIAL_ID)
    assert kept == {"trial": RunState(doubles[1], finished=True)}
    assert [run.info.run_id for run in runs_in_mlflow(home)] == [doubles[1]]


def test_the_opening_can_be_waited_for(home: Home, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opens MLflow beside a tracker waits first: tables made by two threads at once fail for both."""
    tracker, events = Tracker(home, small_campaign(), load_topology("ring:4"), store), []
    genuine = MlflowStore.experiment

    def slow(self: MlflowStore, name: str) -> str:
        time.sleep(0.5)
        events.append("opened")
        return genuine(self, name)

    monkeypatch.setattr(MlflowStore, "experiment", slow)
    tracker.await_opening(60.0)
    events.append("waited")
    tracker.finish([], None, "FINISHED", 60.0)
    assert events == ["opened", "waited"]
