"""A second `--resume` beside a launch whose locks do not hold: the first ends, and nothing is doubled anywhere."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.progress import PlainLines
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.search.search import Search
from chorale.tuner.tracking.mlflow_store import load_mlflow
from chorale.tuner.tracking.tracker import TRIAL_ID
from chorale.tuner.trials.journal import JournalLost
from chorale.tuner.trials.records import TrialRecord
from tests.campaigns import small_campaign
from tests.fakes import InlineWorkers
from tests.unit.tuner.trials.test_one_writer import recorded, replace_files


class _Rival(PlainLines):
    """Progress lines of a launch; after its third trial the whole launch is done again beside it."""

    def __init__(self, home: Home, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._home = home
        self._trials = 0

    def trial(self, record: TrialRecord) -> None:
        self._trials += 1
        if self._trials == 3:
            replace_files(self._home.campaigns / "small" / "1")
            launch(self._home, resume=True)


def launch(home: Home, resume: bool, rival: bool = False) -> TuneReport:
    campaign = small_campaign(budget={"trials": 8})
    workers = InlineWorkers(SimulatedRunner(NetworkModel.of(alpha_us=3, link_gbps=1)))

    def progress(budget: int, done: Any) -> PlainLines:
        arguments = (Console(quiet=True), budget, done)
        return _Rival(home, *arguments) if rival else PlainLines(*arguments)

    return tune(campaign, load_topology(campaign.topology), home, resume, lambda: workers, progress)


def tracked(home: Home) -> Counter[str]:
    client = load_mlflow().MlflowClient(home.mlflow_uri)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id])
    return Counter(run.data.tags[TRIAL_ID] for run in runs if TRIAL_ID in run.data.tags)


def test_the_first_launch_ends_and_nothing_is_doubled(home: Home) -> None:
    with pytest.raises(JournalLost, match="was replaced by another file"):
        launch(home, resume=False, rival=True)
    folder: Path = home.campaigns / "small" / "1"
    trials = recorded(folder)
    assert set(trials.values()) == {1}
    assert len(trials) == 8
    assert tracked(home) == trials
    assert json.loads((folder / "trials.jsonl").read_text().splitlines()[-1])["state"] == "final"


def test_a_search_that_another_launch_took_over_is_not_blamed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process ends trials of the study, which Optuna then refuses to end again."""

    def ask(_: Search) -> None:
        replace_files(home.campaigns / "small" / "1")
        raise ValueError("Trial#7 has already finished")

    monkeypatch.setattr(Search, "ask", ask)
    with pytest.raises(JournalLost, match="was replaced by another file"):
        launch(home, resume=False)
