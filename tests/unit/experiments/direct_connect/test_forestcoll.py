"""ForestColl's numbers, the pipeline paper's example, BFB on tori and Swing's deficiencies."""

from __future__ import annotations

from fractions import Fraction

import pytest

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
