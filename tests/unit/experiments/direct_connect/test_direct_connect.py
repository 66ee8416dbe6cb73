"""The published tables of the direct-connect paper, and what is said where ours differ."""

from __future__ import annotations

from fractions import Fraction

import pytest

from chorale.experiments.direct_connect import tables
from chorale.experiments.direct_connect.tables import bound_quantities, distance_bound, measure_schedule, moore_rate
from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.experiment import Interval, Quantity, compare, published, with_optimal_factor
from chorale.experiments.framework.run import run_experiment
from chorale.synth.topology.spec import parse_topology


def run(name: str, quick: bool = False):
    return run_experiment(load(name), quick).rows


def published_row(table: str, topology: str):
    return next(row for row in published(table).rows if row.topology == topology)


def test_all_rows_are_there():
    assert {table: len(published(table).rows) for table in "4578"} == {"4": 8, "5": 8, "7": 27, "8": 15}
    assert sum(row.is_bound for row in published("7").rows) == 6


def test_table_5():
    rows = run("direct-connect-table-5")
    assert [row["nodes"] for row in rows] == list(range(5, 13))
    assert all(set(row["verdict"].values()) == {"match"} and row["holds"] for row in rows)
    assert [row["nodes"] for row in rows if row["reason"]] == [10]
    assert "would take 6" in rows[5]["reason"]
    assert rows[7]["ours"] == {"steps": "4", "bandwidth_factor": "11/6"}


def test_table_8():
    rows = run("direct-connect-table-8")
    assert len(rows) == 15
    assert all(set(row["verdict"].values()) == {"match"} and row["holds"] for row in rows)
    assert rows[-1]["ours"]["bandwidth_factor"] == "727/728"


def test_table_7_up_to_128_nodes():
    rows = run("direct-connect-table-7", quick=True)
    assert {row["nodes"] for row in rows} == {32, 64, 128}
    assert all(row["holds"] for row in rows)
    off = {row["topology"]: row["verdict"] for row in rows if set(row["verdict"].values()) != {"match"}}
    assert list(off) == ["L(DBJMod(4,2))"]
    assert off["L(DBJMod(4,2))"]["rate"] == "better"
    dominated = [row["topology"] for row in rows if "not Pareto-efficient" in (row["reason"] or "")]
    assert dominated == ["Diamond^2", "BiRing(2,8) x UniRing(1,4)^2"]


@pytest.mark.slow
def test_a_printed_rate_that_no_flow_reaches_is_disproved():
    row = published_row("7", "L^3(C(16,{3,4}))")
    measured = tables._compare_table_7_row(row)
    assert measured["verdict"] == {
        "steps": "match",
        "bandwidth_factor": "match",
        "diameter": "match",
        "rate": "impossible",
    }
    low, high = map(Fraction, measured["ours"]["rate"])
    assert Fraction("7.84e-4") < low < high < Fraction("7.86e-4")
    assert "links / sum of distances = 64/79063" in measured["reason"]
    assert measured["holds"]


def test_times_of_table_4():
    row = tables._compare_table_4_row(published_row("4", "(UniRing(1,4) x UniRing(1,8))^2"))
    assert set(row["verdict"].values()) == {"match"}
    assert Fraction(row["ours"]["allreduce_us"]) == 2 * (200 + Fraction(1023, 1024) * Fraction(8 * 2**20, 100_000))
    ring = tables._compare_table_4_row(published_row("4", "ShiftedRing"))
    assert ring["verdict"] == {"allreduce_us": "better", "alltoall_us": "match"}
    assert "N - 1 suffice" in ring["reason"]
    bound = tables._compare_table_4_row(published_row("4", "bound"))
    assert set(bound["verdict"].values()) == {"match"}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "rows"), [("direct-connect-table-4", 8), ("direct-connect-table-7", 27)])
def test_whole_tables(name, rows):
    answer = run(name)
    assert len(answer) == rows
    assert all(row["holds"] for row in answer)
    disproved = [row["topology"] for row in answer if "impossible" in row["verdict"].values()]
    assert disproved == ["L^3(C(16,{3,4}))"]


def test_bounds_against_counting():
    assert moore_rate(5, 4) == 1
    assert moore_rate(128, 4) == Fraction(1, 100)
    assert distance_bound(parse_topology("uniring:1,4")) == Fraction(4, 24)
    assert distance_bound(parse_topology("debruijn:2,2")) == Fraction(6, 18)
    assert [quantity.key for quantity in bound_quantities(32)] == ["steps", "bandwidth_factor", "diameter", "rate"]


def test_a_factor_on_unequal_nodes_counts_the_busiest():
    assert measure_schedule("dbt:6", "bfb").factor > measure_schedule("shiftedring:6", "bfb").factor == Fraction(5, 6)


def test_a_row_that_is_worse_does_not_hold():
    row = published_row("8", "Octahedron J(4,2)")
    worse = compare(row, [Quantity("steps", Interval.exactly(3))])
    assert (worse["verdict"], worse["holds"]) == ({"steps": "worse"}, False)
    assert worse["reason"] == "steps 2 was printed, 3 is certified"
    fine = compare(row, [Quantity("steps", Interval.exactly(2))])
    assert fine["holds"]
    assert with_optimal_factor(fine, Fraction(5, 6), Fraction(5, 6))["holds"]
    off = with_optimal_factor(fine, Fraction(1), Fraction(5, 6))
    assert (off["verdict"]["bandwidth_factor"], off["holds"]) == ("worse", False)
