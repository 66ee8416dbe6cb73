"""Figures of the direct-connect paper that follow from the model alone, and its table 9."""

from __future__ import annotations

from chorale.experiments.direct_connect import models as bandwidth_time
from chorale.experiments.direct_connect import tables as table_9
from chorale.experiments.direct_connect.frontiers import kind_of
from chorale.experiments.framework.catalog import ALIASES, NAMES, aliases_of, load
from chorale.experiments.framework.run import run_experiment
from tests.chosen_cases import rows_of


def run(name, quick=True):
    return run_experiment(load(name), quick).rows


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
