"""Experiments on the small testbed of the direct-connect paper: by its fit, and what is made of live times."""

import pytest

from chorale.experiments.direct_connect import testbed
from chorale.experiments.direct_connect.testbed import SpeedupClaim, contenders, model_us
from chorale.experiments.framework import live
from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.live import LiveRun
from chorale.experiments.framework.run import run_experiment
from chorale.runners.api.base import FailureKind, RunFailure
from chorale.synth.errors import CheckFailed
from tests.chosen_cases import rows_of
from tests.fakes import FakeRunner


def run(name, quick=True):
    return run_experiment(load(name), quick).rows


@pytest.fixture
def _formula(monkeypatch):
    def measure(request, *_):
        return LiveRun(FakeRunner().submit(request), "fake", "a formula stands for a fabric")

    monkeypatch.setattr(live, "measure_live", measure)


def test_the_fit_of_the_testbed_gives_most_of_figure_6(tmp_path):
    rows = run("direct-connect-figure-6")
    assert {row["where"] for row in rows} == {"simulated"}
    assert all(row["holds"] for row in rows)
    assert sum(row["verdict"] == "match" for row in rows if row["kind"] == "finding") >= 6
    load("direct-connect-figure-6").plot(rows, tmp_path / "small.svg")
    ring = next(one for one in contenders(8) if one.name == "shifted ring")
    assert model_us(ring.verified(), 1) == pytest.approx(14 * 13.33 + 21.60, abs=0.01)


def test_hypercubes(tmp_path):
    rows = run("direct-connect-figure-13")
    assert all(row["holds"] for row in rows)
    load("direct-connect-figure-13").plot(rows, tmp_path / "cubes.svg")


def test_a_finding_compares_the_mean_with_what_was_printed():
    times = {("1 KB", 8, "a"): 50.0, ("1 KB", 8, "b"): 100.0, ("1 KB", 12, "a"): 30.0, ("1 KB", 12, "b"): 100.0}
    row = SpeedupClaim("1 KB", "a", "b", (8, 12), 0.65).row("live", times)
    assert (row["value"], row["verdict"], row["holds"]) == (pytest.approx(0.6), "match", True)
    off = SpeedupClaim("1 KB", "a", "b", (8, 12), 0.2).row("live", times)
    assert (off["verdict"], off["reason"], off["holds"]) == ("not reached", "not explained", False)


@pytest.mark.usefixtures("_formula")
def test_live_rows_name_what_stands_for_a_fabric():
    rows = rows_of("direct-connect-figure-11", lambda cases: [case for case in cases if case[0] == "live"], quick=False)
    assert {row["where"] for row in rows} == {"fake"}
    assert {row["reason"] for row in rows if row["size_bytes"]} == {"a formula stands for a fabric"}
    assert [row["flowing_gain"] for row in rows if "gain" in row] == pytest.approx([0, 11 / 28])


def test_a_live_run_that_fails_says_so(monkeypatch):
    failure = RunFailure(FailureKind.TIMEOUT, "rank 1 hangs")
    monkeypatch.setattr(live, "measure_live", lambda *_: LiveRun(failure, "fake", None))
    with pytest.raises(CheckFailed, match="rank 1 hangs"):
        testbed._points(5)


def test_lines_through_times_that_are_lines(tmp_path):
    xs = [(steps, factor) for steps in (2, 4, 8) for factor in (8 / 5, 7 / 4)]
    points = [
        {"kind": "point", "nodes": 8, "network": "ours", "steps": steps, "factor_us": factor,
         "small_us": 13.0 * steps + 21.0, "large_us": factor / 0.79}
        for steps, factor in xs
    ]  # fmt: skip
    steps, amount = (line.row(points) for line in testbed._LINES)
    assert (steps["slope"], steps["fixed_us"], steps["max_error"]) == pytest.approx((13, 21, 0))
    assert (1 / amount["slope"], amount["fixed_us"], amount["verdict"]) == (pytest.approx(0.79), 0, "match")
    load("direct-connect-figure-14").plot([*points, steps, amount], tmp_path / "fit.svg")
    bent = [{**point, "small_us": point["steps"] ** 3} for point in points]
    assert testbed._LINES[0].row(bent)["verdict"] == "not reached"
    wild = testbed._LINES[1].row([{**point, "large_us": point["small_us"]} for point in points])
    assert (wild["verdict"], wild["holds"]) == ("not reached", False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_live_on_five_nodes():
    rows = run("direct-connect-figure-14")
    assert all(row["holds"] for row in rows)
    points = [row for row in rows if row["kind"] == "point"]
    assert [row["steps"] for row in points] == [2, 8, 4]
    assert {row["bandwidth_factor"] for row in points} == {"8/5"}
