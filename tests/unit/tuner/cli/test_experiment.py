"""`chorale experiment`: what it prints, and how it refuses."""

import dataclasses

import pytest

import chorale.tuner.cli.experiment as command
from chorale.experiments.framework import run
from tests.command import chorale


@pytest.fixture(autouse=True)
def data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("CHORALE_HOME", str(tmp_path))


def test_the_list_and_an_experiment_as_json_and_table(capsys):
    document = chorale(capsys, "experiment", "list", "--json").document
    assert [entry["name"] for entry in document["experiments"]] == list(run.NAMES)
    assert all(entry["question"].endswith("?") and entry["source"] for entry in document["experiments"])
    done = chorale(capsys, "experiment", "list")
    assert (done.code, done.stderr) == (0, "")
    assert "finder-frontier" in done.stdout
    document = chorale(capsys, "experiment", "direct-connect-table-5", "--json").document
    assert document["holds"] is True
    assert len(document["rows"]) == 8
    assert document["seconds"] > 0
    done = chorale(capsys, "experiment", "direct-connect-table-5", code=0)
    assert "C(12,{2,3})" in done.stdout
    assert done.stderr.endswith(" s\n")


def test_resuming_gives_the_same_answer_over_any_executor_and_a_plot_is_drawn(capsys, tmp_path):
    first = chorale(capsys, "experiment", "swing-table-2", "--json", "--executor", "processes", "--workers", "2")
    kept = list((tmp_path / "experiments").iterdir())
    assert len(kept) == 3
    again = chorale(capsys, "experiment", "swing-table-2", "--json", "--resume")
    assert again.document == first.document
    kept[0].write_text("{")
    done = chorale(capsys, "experiment", "swing-table-2", "--json", "--resume")
    assert (done.code, done.stdout) == (2, "")
    assert str(kept[0]) in done.stderr
    assert "delete the file" in done.stderr
    file = tmp_path / "frontiers.svg"
    assert chorale(capsys, "experiment", "finder-frontier", "--quick", "--plot", file, "--json").document["holds"]
    assert "256 nodes" in file.read_text()


def test_no_executor_is_opened_for_parts_that_must_be_alone(capsys, monkeypatch):
    built = []
    real = command.open_executor
    monkeypatch.setattr(command, "open_executor", lambda name, workers: built.append(name) or real("serial", workers))
    row = {"nodes": 2, "spec": "", "reason": None, "holds": True}
    known = run.load("direct-connect-table-5")
    for alone in (True, False):
        asked = dataclasses.replace(known, cases=[0], evaluate=lambda _case: [row], columns=(), alone=alone)
        monkeypatch.setattr(run, "load", lambda _name, asked=asked: asked)
        assert chorale(capsys, "experiment", known.name, "--executor", "ray", "--json").code == 0
    assert built == ["serial", "ray"]


def test_a_row_that_does_not_hold_is_exit_1(capsys, monkeypatch):
    real = run.load("direct-connect-table-5")

    def spoiled(parts):
        first, *others = real.conclude(parts)
        return [{**first, "holds": False, "reason": "spoiled"}, *others]

    monkeypatch.setattr(run, "load", lambda _name: dataclasses.replace(real, conclude=spoiled))
    done = chorale(capsys, "experiment", "direct-connect-table-5", "--json", code=1)
    assert done.document["holds"] is False
    assert "some rows are not as published or claimed: 5 nodes, complete:5: spoiled" in done.stderr
