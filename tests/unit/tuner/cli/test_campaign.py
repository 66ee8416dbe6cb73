"""`chorale campaign check | repair`: one damaged line costs one trial."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from chorale.runners.simulated.runner import SimulatedRunner
from chorale.synth.errors import InvalidInput
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.launch.progress import PlainLines
from chorale.tuner.launch.tune import TuneReport, tune
from chorale.tuner.trials.store import Store, launched_campaign
from tests.campaigns import small_campaign
from tests.command import chorale
from tests.fakes import InlineWorkers
from tests.mlflow_connections import forget_connections
from tests.unit.tuner.launch.test_takeover import tracked


def launch(home: Home, resume: bool = False) -> TuneReport:
    campaign = small_campaign()
    workers = InlineWorkers(SimulatedRunner(NetworkModel.of(alpha_us=3, link_gbps=1)))
    progress = lambda budget, done: PlainLines(Console(quiet=True), budget, done)  # noqa: E731 (a callback)
    return tune(campaign, load_topology(campaign.topology), home, resume, lambda: workers, progress)


@pytest.fixture
def journal(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The journal of a finished launch of six trials."""
    monkeypatch.setenv("CHORALE_HOME", str(home.root))
    return launch(home).folder / "trials.jsonl"


def damage(journal: Path, number: int, content: bytes) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[number - 1] = content
    journal.write_bytes(b"".join(lines))


def test_campaigns_are_listed(journal: Path, home: Home, capsys: Any) -> None:
    assert launched_campaign(home, "small") == small_campaign()
    with pytest.raises(InvalidInput, match="campaign list"):
        launched_campaign(home, "large")
    done = chorale(capsys, "campaign", "check", "small", "--json")
    assert (done.code, done.document["ok"], done.document["trials"]) == (0, True, 6)
    [row] = chorale(capsys, "campaign", "list", "--json").document["campaigns"]
    assert (row["campaign"], row["launches"], row["trials"], row["state"]) == ("small", 1, 6, "ended")
    assert "small" in chorale(capsys, "campaign", "list").stdout
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:3]))  # the launch, and two of its trials
    [row] = chorale(capsys, "campaign", "list", "--json").document["campaigns"]
    assert (row["trials"], row["state"]) == (2, "unfinished")
    journal.write_bytes(b"no journal\n")
    [row] = chorale(capsys, "campaign", "list", "--json").document["campaigns"]
    assert row["state"] == "damaged"
    refused = chorale(capsys, "campaign", "repair", "small")
    assert (refused.code, refused.stderr.count("\n")) == (1, 1)
    journal.unlink()
    journal.symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="must be"):
        launch(home, resume=True)


def test_a_damaged_line_costs_that_line(journal: Path, home: Home, capsys: Any) -> None:
    before = journal.read_bytes()
    lines = before.splitlines(keepends=True)
    damage(journal, 4, lines[3].replace(b'"seconds":', b'"seconds":1', 1))  # still a record: the checksum tells
    checked = chorale(capsys, "campaign", "check", "small", "--json")
    assert checked.code == 1
    assert checked.document["damaged_lines"] == [{"line": 4, "reason": "changed since it was written"}]
    assert "chorale campaign repair small" in checked.stderr
    damaged = journal.read_bytes()
    repaired = chorale(capsys, "campaign", "repair", "small", "--json")
    assert repaired.code == 0, repaired.stderr
    assert "lost line 4: changed since it was written" in repaired.document["done"]
    assert repaired.document["after"]["trials"] == 5
    assert journal.with_name("trials.jsonl.backup-1").read_bytes() == damaged
    assert journal.read_bytes().startswith(b"".join([*lines[:3], *lines[4:]]))
    report = launch(home, resume=True)
    assert len({trial.trial_id for trial in report.trials}) == len(report.trials) == 6
    assert set(tracked(home).values()) == {1}


def test_a_running_launch_is_not_repaired(journal: Path, capsys: Any) -> None:
    store = Store(journal.parent)
    assert chorale(capsys, "campaign", "repair", "small").code == 3
    store.close()
    assert json.loads(journal.read_bytes().splitlines()[-1])["state"] == "writer"
    assert os.path.exists(journal)


@pytest.mark.slow
def test_a_finalist_whose_line_is_lost_is_measured_again(journal: Path, home: Home, capsys: Any) -> None:
    """The final comparison, which names it, stays."""
    lines = journal.read_bytes().splitlines(keepends=True)
    finalist = next(iter(json.loads(next(line for line in lines if b'"results"' in line))["results"]))
    number = 1 + next(index for index, line in enumerate(lines) if json.loads(line).get("trial_id") == finalist)
    damage(journal, number, b"garbage\n")
    (home.root / "mlflow.db").unlink()
    forget_connections(home.mlflow_uri)  # as in a new process
    repaired = chorale(capsys, "campaign", "repair", "small")
    assert repaired.code == 0, repaired.stderr
    assert len(launch(home, resume=True).trials) == 6
    assert set(tracked(home).values()) == {1}


def test_a_folder_of_another_user_is_said_in_one_line(capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_home: Home) -> Path:
        raise PermissionError(13, "Permission denied", "/data/campaigns")

    monkeypatch.setattr(Home, "campaigns", property(refused))
    done = chorale(capsys, "campaign", "check", "small")
    assert (done.code, done.stderr.count("\n")) == (3, 1)
    assert "/data/campaigns: Permission denied; " in done.stderr
