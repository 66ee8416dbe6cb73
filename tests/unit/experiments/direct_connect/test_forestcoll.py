"""ForestColl's numbers, the pipeline paper's example, BFB on tori and Swing's deficiencies."""

from fractions import Fraction

import pytest

from chorale.experiments.forestcoll import figures as figure_11
from chorale.experiments.forestcoll import tables
from chorale.experiments.forestcoll.figures import figure_1, unwound
from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from tests.chosen_cases import rows_of


def run(name):
    return run_experiment(load(name), True).rows


def test_every_number_of_the_worked_example():
    rows = run("pipeline-examples")
    assert all(row["holds"] and Fraction(row["printed"]) == Fraction(row["ours"]) for row in rows)
    assert (figure_1().compute_count, figure_1().switch_count) == (8, 3)
    assert (unwound().compute_count, unwound().switch_count) == (8, 0)


def test_optima_of_the_small_testbeds():
    rows = run("forestcoll-optima")
    assert [row["spec"] for row in rows] == ["mi250:1", "a100:2", "a100:2", "a100:4"]
    assert all(set(row["verdict"].values()) == {"match"} for row in rows)


def test_record_and_prediction(monkeypatch):
    key = ("mi250_8+8", "allgather", "ForestColl")
    monkeypatch.setattr(tables, "_TABLE_2_PRINTED", {key: ("12.8", "70.8", "111", "999")})
    rows = rows_of("forestcoll-table-2", lambda _cases: [key])
    assert [row["verdict"] for row in rows] == ["match", "match", "match", "worse"]
    assert [row["holds"] for row in rows] == [True, True, True, False]
    assert [abs(rows[place]["error"]) < 0.01 for place in (0, 3)] == [True, True]  # those two are in the fit
    assert all(abs(row["error"]) < 0.3 for row in rows)


def test_bfb_is_ahead_on_uneven_tori_only(tmp_path):
    rows = run("direct-connect-figure-11")
    gains = {row["spec"]: (row["flowing_gain"], row["gain"]) for row in rows if "gain" in row}
    assert gains["torus:3x3x3"] == pytest.approx((0, 0), abs=0.01)
    assert gains["torus:3x3x2"] == pytest.approx((0.2, 0.86), abs=0.01)
    assert gains["torus:3x3x3x2"] == pytest.approx((0.24, 0.96), abs=0.01)
    load("direct-connect-figure-11").plot(rows, tmp_path / "tori.svg")
    assert "torus:3x3x3x2" in (tmp_path / "tori.svg").read_text()


def test_deficiencies_are_never_above_the_printed_ones():
    rows = run("swing-table-2")
    assert {row["method"] for row in rows} >= {"swing", "bucket", "hamiltonian-ring"}
    assert all(row["holds"] for row in rows)
    assert next(r["ours"] for r in rows if (r["method"], r["quantity"]) == ("swing", "latency")) == 2


@pytest.mark.parametrize(("power", "scales"), [(2, True), (5, False)])
def test_check_marks_are_found_out(monkeypatch, power, scales):
    monkeypatch.setattr(tables, "DIRECT", ("torus:3x3", "genkautz:4,11"))
    monkeypatch.setattr(tables, "growth_exponent", lambda _sizes, _seconds: power)
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
