"""BFB, forest, Swing and rings on the same networks."""

from __future__ import annotations

import pytest

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from chorale.experiments.ours.quality import FAMILIES
from chorale.experiments.ours.quality import SIDE_BY_SIDE_NETWORKS as NETWORKS
from chorale.experiments.ours.quality import SIDE_BY_SIDE_SIZES as SIZES
from chorale.experiments.ours.quality import SIDE_BY_SIDE_SLOW as SLOW

KIB, MIB = 2**10, 2**20
FASTEST = {
    ("torus:8x8", KIB): "Swing",
    ("torus:8x8", 256 * MIB): "BFB",
    ("torus:16x4", MIB): "Swing",
    ("hyperx:8x8", KIB): "BFB",
    ("genkautz:4,64", 64 * MIB): "BFB",
    ("circulant:64,5,6", KIB): "Swing",
    ("a100:2", KIB): "forest",
    ("a100:2", 256 * MIB): "forest",
    ("hxmesh:2,4x4", 64 * MIB): "Swing",
    ("hxmesh:2,4x4", 4096 * MIB): "rings",
    ("mi250:2", KIB): "Swing",
    ("mi250:2", 256 * MIB): "forest",
}


def check(quick, specs):
    rows = run_experiment(load("side-by-side"), quick).rows
    assert [(row["spec"], row["size_bytes"]) for row in rows] == [(spec, size) for spec in specs for size in SIZES]
    assert all(row["holds"] for row in rows)
    for row in rows:
        assert row["us"][row["fastest"]] == min(row["us"].values())
        assert all(row["method"][family] in FAMILIES[family] for family in row["us"])
        if (row["spec"], row["size_bytes"]) in FASTEST:
            assert row["fastest"] == FASTEST[row["spec"], row["size_bytes"]]
    return rows


def test_quick(tmp_path):
    rows = check(True, [spec for spec in NETWORKS if spec not in SLOW])
    assert {family for row in rows for family in row["us"]} == set(FAMILIES)
    assert all(("BFB" in row["us"]) == (row["spec"] != "a100:2") for row in rows)
    for file in (tmp_path / "one.svg", tmp_path / "two.svg"):
        load("side-by-side").plot(rows, file)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.slow
def test_all_networks():
    check(False, NETWORKS)
