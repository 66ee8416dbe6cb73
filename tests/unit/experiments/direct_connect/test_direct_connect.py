"""The published tables of the direct-connect paper, and what is said where ours differ."""

from fractions import Fraction

import pytest

from chorale.experiments.direct_connect import models as bandwidth_time
from chorale.experiments.direct_connect import tables
from chorale.experiments.direct_connect import tables as table_9
from chorale.experiments.direct_connect.frontiers import kind_of
from chorale.experiments.direct_connect.tables import bound_quantities, distance_bound, measure_schedule
from chorale.experiments.framework.catalog import ALIASES, NAMES, aliases_of, load
from chorale.experiments.framework.experiment import Interval, Quantity, compare, published, with_optimal_factor
from chorale.experiments.framework.run import run_experiment
from chorale.synth.finder.candidate import greatest_rate
from chorale.synth.topology.spec import parse_topology
from tests.chosen_cases import rows_of


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


def test_times_of_table_4():
    row = tables._table_4(published_row("4", "(UniRing(1,4) x UniRing(1,8))^2"))
    assert set(row["verdict"].values()) == {"match"}
    assert Fraction(row["ours"]["allreduce_us"]) == 2 * (200 + Fraction(1023, 1024) * Fraction(8 * 2**20, 100_000))
    ring = tables._table_4(published_row("4", "ShiftedRing"))
    assert ring["verdict"] == {"allreduce_us": "better", "alltoall_us": "match"}
    assert "N - 1 suffice" in ring["reason"]
    bound = tables._table_4(published_row("4", "bound"))
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
    assert greatest_rate(5, 4) == 1
    assert greatest_rate(128, 4) == Fraction(1, 100)
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


def test_figures_are_found_by_the_numbers_of_the_paper():
    for number in (3, *range(6, 12), 13, 14, 15, 18):
        assert load(f"direct-connect-figure-{number}").source
    assert not set(ALIASES) & set(NAMES)
    assert aliases_of("training-experts") == ("direct-connect-figure-9",)
    assert load("direct-connect-figure-10").plot is not None


def test_families_have_the_properties_of_table_9():
    rows = rows_of("direct-connect-table-9", lambda claims: [claim for claim in claims if claim.nodes <= 16])
    assert all(row["holds"] for row in rows)
    assert [row["spec"] for row in rows if row["reason"]] == ["debruijn:3,1"]
    assert {row["ours"]["bfb"] for row in rows if row["family"] in ("diamond", "modified de Bruijn")} == {False}


def test_a_property_that_is_not_there_is_named():
    row = table_9.row_of(table_9._Claim("ring", "ring:6", 2, 6, parallel_links=True))
    assert not row["holds"]
    assert row["reason"] == "steps: Moore was printed, 3 is so; parallel_links: True was printed, False is so"


def test_line_graphs_stay_below_the_limit(tmp_path):
    degree = bandwidth_time.BANDWIDTH_TIME_DEGREE
    rows = rows_of("direct-connect-figure-3", lambda cases: [one for one in cases if one[1] * degree ** one[2] <= 600])
    assert all(row["holds"] for row in rows)
    assert {row["known_by"] for row in rows if "known_by" in row} == {"verified schedule", "exact prediction"}
    load("direct-connect-figure-3").plot(rows, tmp_path / "lines.svg")


def test_kinds_of_topologies():
    specs = ("genkautz:4,37", "circulant:41,4,5", "line(power(diamond;2);2)", "line(bipartite:4)", "hamming:2,3")
    assert [kind_of(spec) for spec in specs] == ["GenKautz", "Circulant", "LP", "L", "other base"]


def test_best_kinds_by_size_of_the_vector(tmp_path):
    rows = rows_of("direct-connect-figure-15", lambda cases: [(both_ways, 24, 1) for both_ways, _, _ in cases])
    counted = [row for row in rows if row["kind"] not in ("finding", "bound", "best bidirectional")]
    for size in ("1 MB", "100 MB"):
        assert sum(row["count"] for row in counted if row["size"] == size) == 19
    assert all(row["holds"] for row in rows if row["kind"] == "bound")
    load("direct-connect-figure-15").plot(rows, tmp_path / "kinds.svg")


def test_many_nodes(tmp_path):
    rows = rows_of("direct-connect-figure-7", lambda cases: [(name, 16) for name in dict(cases)])
    assert len(rows) == 2
    assert all(row["holds"] for row in rows)
    for row in rows:
        assert row["us"]["bound"] == min(row["us"].values())
    load("direct-connect-figure-7").plot(rows, tmp_path / "many.svg")
