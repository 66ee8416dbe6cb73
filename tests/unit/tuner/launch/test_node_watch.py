"""A launch that goes on on other nodes measures its baselines there, and says so."""

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.runners.api.base import Measurement, Outcome, RunRequest
from chorale.tuner.trials.records import CompleteTrial
from tests.campaigns import small_campaign
from tests.fakes import FakeRunner, InlineWorkers
from tests.unit.tuner.launch.test_loop import launch


class RunnerOnNodes(FakeRunner):
    """Runs on the nodes `n1,n3`, and after `moves_after` requests on others."""

    def __init__(self, moves_after: int) -> None:
        super().__init__()
        self._moves_after = moves_after

    def submit(self, request: RunRequest) -> Outcome:
        outcome = super().submit(request)
        assert isinstance(outcome, Measurement)
        nodes = "n1,n3" if len(self.requests) <= self._moves_after else "n1,n4"
        return replace(outcome, environment={**outcome.environment, "nodes": nodes})


def test_the_first_trial_on_other_nodes_is_measured_beside_the_baselines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    search = {"methods": ["bfb"], "channels": {"from": 1, "to": 6}}
    campaign = small_campaign(budget={"trials": 6}, parallel=1, search=search, pruner="none")
    with caplog.at_level(logging.WARNING, "chorale.controller"):
        trials = launch(tmp_path, campaign, InlineWorkers(RunnerOnNodes(moves_after=4)))
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    assert [trial.environment["nodes"] for trial in complete] == ["n1,n3"] * 4 + ["n1,n4"] * 2
    assert complete[4].sizes[0].beside  # the fifth would have shared the baselines of the fourth
    assert caplog.messages == ["measured on n1,n4, before on n1,n3: the baselines are measured again there"]


def test_nodes_that_stay_cost_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    counts = []
    for name, runner in (("elsewhere", FakeRunner()), ("nodes", RunnerOnNodes(moves_after=1000))):
        (tmp_path / name).mkdir()
        launch(tmp_path / name, small_campaign(budget={"trials": 6}, parallel=1), InlineWorkers(runner))
        counts.append(len(runner.requests))
    assert counts[0] == counts[1]
    assert not any("before on" in message for message in caplog.messages)
