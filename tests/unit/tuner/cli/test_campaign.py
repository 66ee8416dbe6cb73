"""`chorale campaign check | repair`: one damaged line costs one trial."""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.files.home import Home
from chorale.tuner.trials import store
from chorale.tuner.trials.store import Store, launched_campaign
from tests.campaigns import small_campaign, tracked_runs
from tests.command import chorale
from tests.mlflow_connections import forget_connections
from tests.unit.tuner.launch.test_tuning import run


@pytest.fixture
def journal(home: Home, monkeypatch: pytest.MonkeyPatch) -> Path:
    return run(home).folder / "trials.jsonl"


def damage(journal: Path, number: int, content: bytes) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[number - 1] = content
    journal.write_bytes(b"".join(lines))


def test_a_stored_campaign_may_have_keys_of_earlier_versions(journal, home, monkeypatch):
    launch = store.read_launch(journal.parent)
    older = replace(launch, campaign={**launch.campaign, "overlap": {"products": 0}})
    monkeypatch.setattr(store, "read_launch", lambda _: older)
    assert launched_campaign(home, "small") == small_campaign()


def test_campaigns_are_listed(journal, home, capsys):
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
    assert chorale(capsys, "campaign", "repair", "small", code=1).stderr.count("\n") == 1
    journal.unlink()
    journal.symlink_to("/dev/zero")
    with pytest.raises(InvalidInput, match="no regular file"):
        run(home, resume=True)


def test_a_damaged_line_costs_that_line(journal, home, capsys):
    before = journal.read_bytes()
    lines = before.splitlines(keepends=True)
    damage(journal, 4, lines[3].replace(b'"seconds":', b'"seconds":1', 1))  # still a record: the checksum tells
    checked = chorale(capsys, "campaign", "check", "small", "--json", code=1)
    assert checked.document["damaged_lines"] == [{"line": 4, "reason": "changed since it was written"}]
    assert "chorale campaign repair small" in checked.stderr
    damaged = journal.read_bytes()
    repaired = chorale(capsys, "campaign", "repair", "small", "--json", code=0)
    assert "lost line 4: changed since it was written" in repaired.document["done"]
    assert repaired.document["after"]["trials"] == 5
    assert journal.with_name("trials.jsonl.backup-1").read_bytes() == damaged
    assert journal.read_bytes().startswith(b"".join([*lines[:3], *lines[4:]]))
    report = run(home, resume=True)
    assert len({trial.trial_id for trial in report.trials}) == len(report.trials) == 6
    assert len(tracked_runs(home.mlflow_uri)) == 6


PLACED = {
    "a folder": Path.mkdir,
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "a pipe": os.mkfifo,
    "a link to itself": lambda path: path.symlink_to(path.name),
    "empty": Path.touch,
    "garbage": lambda path: path.write_bytes(b"\xff\xfe\x00garbage\n" * 500),
    "missing": lambda path: None,
}


@pytest.mark.parametrize("name", ["trials.jsonl", "optuna.journal", "schedules"])
def test_whatever_lies_in_place_of_a_file_commands_end_in_a_line(journal, capsys, tmp_path, name):
    file, kept = journal.with_name(name), tmp_path / "kept"
    file.rename(kept)
    for what, place in PLACED.items():
        place(file)
        for words in (("check", "small"), ("repair", "small"), ("list",)):
            done = chorale(capsys, "campaign", *words)
            assert done.code in (0, 1, 2, 3), (what, words, done.stderr)
            assert done.code == 0 or re.search(r"^chorale: [^;]+; .+$", done.stderr, re.MULTILINE), (what, done.stderr)
        if os.path.lexists(file):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    kept.rename(file)
    assert chorale(capsys, "campaign", "check", "small").code == 0


def test_a_running_launch_is_not_repaired(journal, capsys):
    store = Store(journal.parent)
    assert chorale(capsys, "campaign", "repair", "small").code == 3
    store.close()
    assert json.loads(journal.read_bytes().splitlines()[-1])["state"] == "writer"
    assert os.path.exists(journal)


@pytest.mark.slow
def test_a_finalist_whose_line_is_lost_is_measured_again(journal, home, capsys):
    """The final comparison, which names it, stays."""
    lines = journal.read_bytes().splitlines(keepends=True)
    finalist = next(iter(json.loads(next(line for line in lines if b'"results"' in line))["results"]))
    number = 1 + next(index for index, line in enumerate(lines) if json.loads(line).get("trial_id") == finalist)
    damage(journal, number, b"garbage\n")
    (home.root / "mlflow.db").unlink()
    forget_connections(home.mlflow_uri)  # as in a new process
    chorale(capsys, "campaign", "repair", "small", code=0)
    assert len(run(home, resume=True).trials) == 6
    assert len(tracked_runs(home.mlflow_uri)) == 6


def test_a_folder_of_another_user_is_said_in_one_line(capsys, monkeypatch):
    def refused(_home: Home) -> Path:
        raise PermissionError(13, "Permission denied", "/data/campaigns")

    monkeypatch.setattr(Home, "campaigns", property(refused))
    done = chorale(capsys, "campaign", "check", "small")
    assert (done.code, done.stderr.count("\n")) == (3, 1)
    assert "/data/campaigns: Permission denied; " in done.stderr
