"""Times and qualities by size: table 6, figure 18, growth of synthesis, and networks with lost links."""

from fractions import Fraction

import pytest

from chorale.experiments.direct_connect import models as bandwidth_time
from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from chorale.experiments.ours import scaling as synthesis_scaling
from tests.chosen_cases import rows_of


def run(name):
    return run_experiment(load(name), True).rows


def test_quality_decides_and_time_is_told_apart():
    rows = rows_of("direct-connect-table-6", lambda _cases: (("hypercube:4", "1e9"), ("torus:4x4", "0")))
    assert [(row["steps"], row["bandwidth_factor"]) for row in rows] == [(4, "15/16")] * 2
    assert [row["verdict"]["seconds"] for row in rows] == ["match", "not reached"]
    assert all(row["holds"] for row in rows)


def test_kautz_graphs_stay_below_the_caption(monkeypatch, tmp_path):
    monkeypatch.setattr(bandwidth_time, "FIGURE_18_MAX_NODES", 100)
    rows = run("direct-connect-figure-18")
    assert all(row["holds"] and Fraction(row["worst"]) <= 2 and row["steps_over_least"] <= 1 for row in rows)
    monkeypatch.setattr(bandwidth_time, "_MAX_RATIO", 1)
    assert [row["verdict"] for row in run("direct-connect-figure-18")] == ["not reached"] * 4
    load("direct-connect-figure-18").plot(rows, tmp_path / "kautz.svg")
    assert "degree 16" in (tmp_path / "kautz.svg").read_text()


def test_exponent_of_a_known_growth(monkeypatch, tmp_path):
    def take_square(_make, topology):
        return topology.compute_count**2

    monkeypatch.setattr(synthesis_scaling, "_seconds", take_square)
    rows = run("synthesis-scaling")
    assert all(row["times_the_first"] == (row["nodes"] / 16) ** 2 for row in rows)
    assert [row["exponent"] for row in rows if row["exponent"]] == [pytest.approx(2)] * 4
    load("synthesis-scaling").plot(rows, tmp_path / "growth.svg")
    assert "ranks" in (tmp_path / "growth.svg").read_text()


def on_a_small_torus(cases):
    return list(dict.fromkeys(("torus:4x4", *case[1:]) for case in cases))


def test_trees_reach_the_bound_of_what_is_left():
    rows, again = (rows_of("failure-quality", on_a_small_torus) for _ in range(2))
    assert [row["percent"] for row in rows] == [0, 0, 1, 1, 2, 2, 5, 5]
    assert all(row["holds"] for row in rows)
    assert {row["over_bound"] for row in rows if row["method"] == "forest"} == {"1"}
    assert rows[2]["spec"].startswith("without(torus:4x4;link=")
    assert rows == again


def check(name, quick, findings):
    rows = run_experiment(load(name), quick).rows
    assert [row["finding"] for row in rows if not row["holds"]] == []
    assert sum(row["kind"] == "finding" for row in rows) == findings
    bounds = {row["model"]: row for row in rows if row.get("network") == "bound"}
    for row in rows:
        if row["kind"] == "iteration":
            for key in ("iteration_s", "alltoall_s"):
                assert row[key] >= bounds[row["model"]][key] * 0.999999
            assert row["compute_s"] == pytest.approx(bounds[row["model"]]["compute_s"])
    return rows


def test_data_parallel(tmp_path):
    rows = check("training-data-parallel", True, 5)
    assert {row["nodes"] for row in rows} == {8, 12}
    for file in (tmp_path / "one.svg", tmp_path / "two.svg"):
        load("training-data-parallel").plot(rows, file)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_experts_on_all_sizes():
    check("training-experts", False, 13)
