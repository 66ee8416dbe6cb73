"""Tables and figures of the direct-connect and ForestColl papers, and what is said where ours differ."""

import dataclasses
from fractions import Fraction

import pytest

from chorale.experiments.direct_connect import models, tables, testbed
from chorale.experiments.direct_connect.frontiers import kind_of
from chorale.experiments.direct_connect.models import BANDWIDTH_TIME_DEGREE as DEGREE
from chorale.experiments.direct_connect.testbed import SpeedupClaim, contenders, model_us
from chorale.experiments.forestcoll import tables as forestcoll_tables
from chorale.experiments.framework import live
from chorale.experiments.framework.experiment import Interval, Quantity, compare, published, with_optimal_factor
from chorale.experiments.framework.live import LiveRun
from chorale.experiments.framework.run import ALIASES, NAMES, load, run_experiment
from chorale.experiments.ours import scaling
from chorale.runners.api.base import FailureKind, RunFailure
from chorale.synth.errors import CheckFailed
from tests.chosen_cases import rows_of, with_cases
from tests.fakes import FakeRunner


def run(name: str, quick: bool = True):
    return run_experiment(load(name), quick).rows


def published_row(table: str, topology: str):
    return next(row for row in published(table).rows if row.topology == topology)


@pytest.fixture
def drawn(tmp_path):
    """Return what draws rows of an experiment twice, to the same bytes, and returns the text of the picture."""

    def draw(name, rows, suffix=".svg"):
        files = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
        for file in files:
            load(name).plot(rows, file)
        assert files[0].read_bytes() == files[1].read_bytes()
        return files[0].read_text() if suffix == ".svg" else files[0].read_bytes()

    return draw


def test_tables_4_5_and_8_match():
    assert {table: len(published(table).rows) for table in "4578"} == {"4": 8, "5": 8, "7": 27, "8": 15}
    for number in "58":
        rows = run(f"direct-connect-table-{number}", quick=False)
        assert len(rows) == len(published(number).rows)
        assert all(set(row["verdict"].values()) == {"match"} and row["holds"] for row in rows)
        assert [row["nodes"] for row in rows if row["reason"]] == ([10] if number == "5" else [])
    row = tables._table_4(published_row("4", "(UniRing(1,4) x UniRing(1,8))^2"))
    assert set(row["verdict"].values()) == {"match"}
    assert Fraction(row["ours"]["allreduce_us"]) == 2 * (200 + Fraction(1023, 1024) * Fraction(8 * 2**20, 100_000))
    ring = tables._table_4(published_row("4", "ShiftedRing"))
    assert ring["verdict"] == {"allreduce_us": "better", "alltoall_us": "match"}
    assert "N - 1 suffice" in ring["reason"]
    assert set(tables._table_4(published_row("4", "bound"))["verdict"].values()) == {"match"}


def test_table_7_up_to_128_nodes():
    rows = run("direct-connect-table-7")
    assert {row["nodes"] for row in rows} == {32, 64, 128}
    assert all(row["holds"] for row in rows)
    off = {row["topology"]: row["verdict"] for row in rows if set(row["verdict"].values()) != {"match"}}
    assert list(off) == ["L(DBJMod(4,2))"]
    assert off["L(DBJMod(4,2))"]["rate"] == "better"
    dominated = [row["topology"] for row in rows if "not Pareto-efficient" in (row["reason"] or "")]
    assert dominated == ["Diamond^2", "BiRing(2,8) x UniRing(1,4)^2"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "rows"), [("direct-connect-table-4", 8), ("direct-connect-table-7", 27)])
def test_whole_tables(name, rows):
    answer = run(name, quick=False)
    assert len(answer) == rows
    assert all(row["holds"] for row in answer)
    disproved = [row["topology"] for row in answer if "impossible" in row["verdict"].values()]
    assert disproved == ["L^3(C(16,{3,4}))"]


def test_a_row_that_is_worse_does_not_hold_and_a_finding_compares_the_mean_with_what_was_printed():
    row = published_row("8", "Octahedron J(4,2)")
    worse = compare(row, [Quantity("steps", Interval.exactly(3))])
    assert (worse["verdict"], worse["holds"]) == ({"steps": "worse"}, False)
    assert worse["reason"] == "steps 2 was printed, 3 is certified"
    fine = compare(row, [Quantity("steps", Interval.exactly(2))])
    assert fine["holds"]
    assert with_optimal_factor(fine, Fraction(5, 6), Fraction(5, 6))["holds"]
    off = with_optimal_factor(fine, Fraction(1), Fraction(5, 6))
    assert (off["verdict"]["bandwidth_factor"], off["holds"]) == ("worse", False)
    times = {("1 KB", 8, "a"): 50.0, ("1 KB", 8, "b"): 100.0, ("1 KB", 12, "a"): 30.0, ("1 KB", 12, "b"): 100.0}
    row = SpeedupClaim("1 KB", "a", "b", (8, 12), 0.65).row("live", times)
    assert (row["value"], row["verdict"], row["holds"]) == (pytest.approx(0.6), "match", True)
    off = SpeedupClaim("1 KB", "a", "b", (8, 12), 0.2).row("live", times)
    assert (off["verdict"], off["reason"], off["holds"]) == ("not reached", "not explained", False)


def test_figures_are_found_by_the_numbers_of_the_paper():
    for number in (3, *range(6, 12), 13, 14, 15, 18):
        assert load(f"direct-connect-figure-{number}").source
    assert not set(ALIASES) & set(NAMES)
    assert load("direct-connect-figure-9").name == "training-experts"


def test_families_have_the_properties_of_table_9():
    rows = rows_of("direct-connect-table-9", lambda claims: [claim for claim in claims if claim.nodes <= 16])
    assert all(row["holds"] for row in rows)
    assert [row["spec"] for row in rows if row["reason"]] == ["debruijn:3,1"]
    assert {row["ours"]["bfb"] for row in rows if row["family"] in ("diamond", "modified de Bruijn")} == {False}
    missing = tables.row_of(tables._Claim("ring", "ring:6", 2, 6, parallel_links=True))
    assert not missing["holds"]
    assert missing["reason"] == "steps: Moore was printed, 3 is so; parallel_links: True was printed, False is so"


SMALL = {
    "direct-connect-figure-3": lambda cases: [one for one in cases if one[1] * DEGREE ** one[2] <= 600],
    "direct-connect-figure-7": lambda cases: [(name, 16) for name in dict(cases)],
    "direct-connect-figure-11": list,
    "finder-frontier": list,
    "forestcoll-table-3": lambda cases: cases[:4],
    "side-by-side": list,
    "failure-quality": lambda cases: list(dict.fromkeys(("torus:4x4", *case[1:]) for case in cases)),
    "forestcoll-figure-9": list,
    "forestcoll-optima": list,
    "pipeline-examples": list,
    "swing-table-2": list,
}
"""Experiments whose rows say themselves what was printed and whether ours holds, on cases that take little time."""


@pytest.mark.parametrize("name", SMALL)
def test_every_row_holds_and_is_drawn(name, drawn):
    rows = rows_of(name, SMALL[name])
    assert rows
    assert all(row["holds"] for row in rows)
    assert all(isinstance(column.text(row), str) for column in load(name).columns for row in rows)
    if load(name).plot is not None:
        drawn(name, rows)


def test_best_kinds_by_size_of_the_vector(drawn):
    specs = ("genkautz:4,37", "circulant:41,4,5", "line(power(diamond;2);2)", "line(bipartite:4)", "hamming:2,3")
    assert [kind_of(spec) for spec in specs] == ["GenKautz", "Circulant", "LP", "L", "other base"]
    rows = rows_of("direct-connect-figure-15", lambda cases: [(both_ways, 24, 1) for both_ways, _, _ in cases])
    counted = [row for row in rows if row["kind"] not in ("finding", "bound", "best bidirectional")]
    for size in ("1 MB", "100 MB"):
        assert sum(row["count"] for row in counted if row["size"] == size) == 19
    assert all(row["holds"] for row in rows if row["kind"] == "bound")
    drawn("direct-connect-figure-15", rows)


def test_all_frontiers_of_small_sizes(drawn):
    honest = with_cases("frontier-all", lambda cases: [(bases, 40) for bases, _ in cases])
    rows = run_experiment(honest, True).rows
    sizes = {"5 to 7": 3, "8 to 15": 8, "16 to 31": 16, "32 to 40": 9}
    assert {row["spec"].partition(" nodes, degree 4")[0]: row["sizes"] for row in rows[:4]} == sizes
    assert all(row["holds"] for row in rows)
    assert [row["verdict"] for row in rows[4:]] == ["better", "better"]
    for row in rows[:4]:
        assert all(least <= own <= paper for curve in row["curves"].values() for _, own, paper, least in curve)
    assert "printed points" in drawn("frontier-all", rows)
    swapped = dataclasses.replace(honest, conclude=lambda parts: honest.conclude(parts[::-1]))
    behind = [row for row in run_experiment(swapped, True).rows if "behind" in row]
    assert [row["holds"] for row in behind] == [True, False, False, False]
    assert behind[3]["reason"] == f"behind the paper's bases at {behind[3]['behind']}"


def test_quality_decides_and_time_is_told_apart():
    rows = rows_of("direct-connect-table-6", lambda _cases: (("hypercube:4", "1e9"), ("torus:4x4", "0")))
    assert [(row["steps"], row["bandwidth_factor"]) for row in rows] == [(4, "15/16")] * 2
    assert [row["verdict"]["seconds"] for row in rows] == ["match", "not reached"]
    assert all(row["holds"] for row in rows)


def test_kautz_graphs_stay_below_the_caption(monkeypatch, drawn):
    monkeypatch.setattr(models, "FIGURE_18_MAX_NODES", 100)
    rows = run("direct-connect-figure-18")
    assert all(row["holds"] and Fraction(row["worst"]) <= 2 and row["steps_over_least"] <= 1 for row in rows)
    assert "degree 16" in drawn("direct-connect-figure-18", rows)
    monkeypatch.setattr(models, "_MAX_RATIO", 1)
    assert [row["verdict"] for row in run("direct-connect-figure-18")] == ["not reached"] * 4


def test_exponent_of_a_known_growth(monkeypatch, drawn):
    monkeypatch.setattr(scaling, "_seconds", lambda _make, topology: topology.compute_count**2)
    rows = run("synthesis-scaling")
    assert all(row["times_the_first"] == (row["nodes"] / 16) ** 2 for row in rows)
    assert [row["exponent"] for row in rows if row["exponent"]] == [pytest.approx(2)] * 4
    assert "ranks" in drawn("synthesis-scaling", rows)


@pytest.mark.parametrize(
    ("name", "quick", "findings"),
    [
        ("training-data-parallel", True, 5),
        pytest.param("training-experts", False, 13, marks=[pytest.mark.slow, pytest.mark.timeout(400)]),
    ],
)
def test_training(name, quick, findings, drawn):
    rows = run(name, quick)
    assert [row["finding"] for row in rows if not row["holds"]] == []
    assert sum(row["kind"] == "finding" for row in rows) == findings
    bounds = {row["model"]: row for row in rows if row.get("network") == "bound"}
    for row in (row for row in rows if row["kind"] == "iteration"):
        bound = bounds[row["model"]]
        assert all(row[key] >= bound[key] * 0.999999 for key in ("iteration_s", "alltoall_s"))
        assert row["compute_s"] == pytest.approx(bound["compute_s"])
    drawn(name, rows)


def test_the_fit_of_the_testbed_gives_most_of_its_figures(drawn):
    rows = run("direct-connect-figure-6")
    assert {row["where"] for row in rows} == {"simulated"}
    assert sum(row["verdict"] == "match" for row in rows if row["kind"] == "finding") >= 6
    ring = next(one for one in contenders(8) if one.name == "shifted ring")
    assert model_us(ring.verified(), 1) == pytest.approx(14 * 13.33 + 21.60, abs=0.01)
    for name in ("direct-connect-figure-6", "direct-connect-figure-13"):
        assert all(row["holds"] for row in run(name))
        drawn(name, run(name))


def test_live_rows_name_what_stands_for_a_fabric(monkeypatch):
    note = "a formula stands for a fabric"
    monkeypatch.setattr(live, "measure_live", lambda request, *_: LiveRun(FakeRunner().submit(request), "fake", note))
    rows = rows_of("direct-connect-figure-11", lambda cases: [case for case in cases if case[0] == "live"], quick=False)
    assert {row["where"] for row in rows} == {"fake"}
    assert {row["reason"] for row in rows if row["size_bytes"]} == {note}
    assert [row["flowing_gain"] for row in rows if "gain" in row] == pytest.approx([0, 11 / 28])
    failure = RunFailure(FailureKind.TIMEOUT, "rank 1 hangs")
    monkeypatch.setattr(live, "measure_live", lambda *_: LiveRun(failure, "fake", None))
    with pytest.raises(CheckFailed, match="rank 1 hangs"):
        testbed._points(5)


def test_lines_through_times_that_are_lines(drawn):
    points = [
        {"kind": "point", "nodes": 8, "network": "ours", "steps": steps, "factor_us": factor,
         "small_us": 13.0 * steps + 21.0, "large_us": factor / 0.79}
        for steps in (2, 4, 8) for factor in (8 / 5, 7 / 4)
    ]  # fmt: skip
    steps, amount = (testbed._line_row(points, *line) for line in testbed._LINES)
    assert (steps["slope"], steps["fixed_us"], steps["max_error"]) == pytest.approx((13, 21, 0))
    assert (1 / amount["slope"], amount["fixed_us"], amount["verdict"]) == (pytest.approx(0.79), 0, "match")
    drawn("direct-connect-figure-14", [*points, steps, amount])
    bent = [{**point, "small_us": point["steps"] ** 3} for point in points]
    assert testbed._line_row(bent, *testbed._LINES[0])["verdict"] == "not reached"
    wild = testbed._line_row([{**point, "large_us": point["small_us"]} for point in points], *testbed._LINES[1])
    assert (wild["verdict"], wild["holds"]) == ("not reached", False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_live_on_five_nodes():
    rows = run("direct-connect-figure-14")
    assert all(row["holds"] for row in rows)
    points = [(row["steps"], row["bandwidth_factor"]) for row in rows if row["kind"] == "point"]
    assert points == [(2, "8/5"), (8, "8/5"), (4, "8/5")]


def test_record_and_prediction(monkeypatch):
    key = ("mi250_8+8", "allgather", "ForestColl")
    monkeypatch.setattr(forestcoll_tables, "_TABLE_2_PRINTED", {key: ("12.8", "70.8", "111", "999")})
    rows = rows_of("forestcoll-table-2", lambda _cases: [key])
    assert [row["verdict"] for row in rows] == ["match", "match", "match", "worse"]
    assert [row["holds"] for row in rows] == [True, True, True, False]
    assert [abs(rows[place]["error"]) < 0.01 for place in (0, 3)] == [True, True]  # those two are in the fit
    assert all(abs(row["error"]) < 0.3 for row in rows)


@pytest.mark.parametrize(("power", "scales"), [(2, True), (5, False)])
def test_check_marks_are_found_out(monkeypatch, power, scales):
    monkeypatch.setattr(forestcoll_tables, "DIRECT", ("torus:3x3", "genkautz:4,11"))
    monkeypatch.setattr(forestcoll_tables, "growth_exponent", lambda _sizes, _seconds: power)
    rows = {(row["tool"], row["property"]): row for row in run("forestcoll-table-1")}
    tools = ("BFB", "Blink", "ForestColl")
    assert len(rows) == 15
    assert [rows[tool, "optimal"]["ours"] for tool in tools] == [False, False, True]
    assert [rows[tool, "switches"]["verdict"] for tool in tools] == ["match", "better", "match"]
    assert all(rows[tool, "scalable"]["holds"] == scales for tool in tools)
    assert {row["verdict"] for (tool, _), row in rows.items() if tool in ("SCCL", "TACCL")} == {None}


@pytest.mark.parametrize(("most_s", "verdict"), [(1e9, "match"), (0.0, "not reached")])
def test_quality_holds_whatever_the_machine_does(monkeypatch, drawn, most_s, verdict):
    monkeypatch.setattr(forestcoll_tables, "_MOST_S", {"below 1 s": most_s})
    (row,) = rows_of("forestcoll-figure-11", lambda specs: [spec for spec in specs if spec == "a100:2"])
    assert row["holds"]
    assert row["verdict"] == {"quality": "match", "seconds": verdict}
    assert (row["k"], row["algbw"], row["times_the_first"]) == (13, "346.667", 1)
    assert row["flows_over_ours"] > 0
    assert "GPUs" in drawn("forestcoll-figure-11", [row])
