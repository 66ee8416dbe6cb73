"""ForestColl's tables 1 and 3 and figures 9 and 11: what is tried, predicted, counted and timed."""

from __future__ import annotations

import pytest

from chorale.experiments.forestcoll import figures as figure_11
from chorale.experiments.forestcoll import tables
from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from tests.chosen_cases import rows_of


def run(name):
    return run_experiment(load(name), True).rows


@pytest.mark.parametrize(("power", "scales"), [(2, True), (5, False)])
def test_check_marks_are_found_out(monkeypatch, power, scales):
    monkeypatch.setattr(tables, "DIRECT", ("torus:3x3", "genkautz:4,11"))
    monkeypatch.setattr(tables, "_seconds", lambda _generator, nodes: nodes**power)
    rows = {(row["tool"], row["property"]): row for row in run("forestcoll-table-1")}
    assert len(rows) == 15
    assert [rows[tool, "optimal"]["ours"] for tool in ("BFB", "Blink", "ForestColl")] == [False, False, True]
    assert [rows[tool, "switches"]["verdict"] for tool in ("BFB", "Blink", "ForestColl")] == [
        "match",
        "better",
        "match",
    ]
    assert all(rows[tool, "scalable"]["holds"] == scales for tool in ("BFB", "Blink", "ForestColl"))
    assert {row["verdict"] for (tool, _), row in rows.items() if tool in ("SCCL", "TACCL")} == {None}


def test_two_printed_numbers_predict_the_others(tmp_path):
    rows = rows_of("forestcoll-table-3", lambda cases: cases[:4])
    assert len(rows) == 16
    assert all(row["holds"] for row in rows)
    assert [row["verdict"] for row in rows if row["error"] is not None and abs(row["error"]) > 0.15] == [
        "not reached"
    ] * 2
    fitted = [row for row in rows if row["reason"] == "in the fit"]
    assert [row["verdict"] for row in fitted] == [None] * 4
    assert all(abs(row["error"]) < 0.01 for row in fitted)
    assert {row["generator"] for row in rows if row["predicted_gb_per_s"] is None} == {"TACCL"}
    load("forestcoll-table-3").plot(rows, tmp_path / "a100.svg")
    assert "NCCL ring" in (tmp_path / "a100.svg").read_text()


def test_a_ring_crosses_between_boxes_almost_twice_as_often(tmp_path):
    rows = run("forestcoll-figure-9")
    assert [row["ours"] for row in rows[:3]] == ["15", "8", "13/8"]
    assert [row["verdict"] for row in rows] == ["match", "match", "match", None]
    assert sorted(end for _, end in rows[1]["tree"]) == list(range(1, 16))
    load("forestcoll-figure-9").plot(rows, tmp_path / "tree.svg")
    assert "ring over trees" in (tmp_path / "tree.svg").read_text()


@pytest.mark.parametrize(("most_s", "verdict"), [(1e9, "match"), (0.0, "not reached")])
def test_quality_holds_whatever_the_machine_does(monkeypatch, tmp_path, most_s, verdict):
    monkeypatch.setattr(figure_11, "_MOST_S", {"below 1 s": most_s})
    (row,) = rows_of("forestcoll-figure-11", lambda specs: [spec for spec in specs if spec == "a100:2"])
    assert row["holds"]
    assert row["verdict"] == {"quality": "match", "seconds": verdict}
    assert (row["k"], row["algbw"], row["times_the_first"]) == (13, "346.667", 1)
    assert row["flows_over_ours"] > 0
    load("forestcoll-figure-11").plot([row], tmp_path / "boxes.svg")
    assert "GPUs" in (tmp_path / "boxes.svg").read_text()
