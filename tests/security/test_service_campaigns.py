"""A campaign whose artifacts cannot be written has failed; it does not run for ever."""

import threading
from typing import Any

import pytest

from chorale.tuner.files.home import Home
from chorale.tuner.launch import detached
from chorale.tuner.launch.detached import DetachedLaunch, LaunchState
from tests.campaigns import small_campaign
from tests.fakes import InlineWorkers
from tests.unit.tuner.launch.test_tuning import simulated

WAIT_S = 120.0


def ended(home: Home, monkeypatch: pytest.MonkeyPatch) -> DetachedLaunch:
    """Return a launch that has ended; the test fails if it goes on."""
    monkeypatch.setattr(detached, "MLFLOW_PAUSE_S", 0.01)
    monkeypatch.setattr(detached, "make_workers", lambda *_: lambda: InlineWorkers(simulated()))
    monkeypatch.setattr(detached, "_Stoppable", lambda inner, _stop: inner)
    document: dict[str, Any] = small_campaign(budget={"trials": 1}).model_dump(by_alias=True, mode="json")
    launch = DetachedLaunch(document, home.root, "launch")
    threads = [thread for thread in threading.enumerate() if thread.name == "chorale-launch"]
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive(), "the campaign goes on for ever"
    return launch


def test_an_unwritable_place_of_artifacts_is_a_failed_campaign(home: Home, monkeypatch: pytest.MonkeyPatch):
    home.artifacts.parent.mkdir(parents=True, exist_ok=True)
    home.artifacts.write_text("a file, so that not even root can write below it")
    status = ended(home, monkeypatch).status(0)
    assert status.state is LaunchState.FAILED
    assert "MLflow" in str(status.error)
    assert len(status.new_trials) == 1  # what was measured stays


def test_a_place_of_artifacts_that_can_be_written_is_an_ended_campaign(home: Home, monkeypatch: pytest.MonkeyPatch):
    status = ended(home, monkeypatch).status(0)
    assert (status.state, status.error) == (LaunchState.ENDED, None)
