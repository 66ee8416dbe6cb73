"""Our frontier beside the printed one."""

from __future__ import annotations

from fractions import Fraction

import pytest

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment

BETTER = {32: (3, "31/32"), 64: (4, "63/64"), 128: (4, "127/128"), 256: (5, "255/256"), 512: (5, "511/512")}
BETTER_AT_1024 = (6, "1023/1024")


def check(rows, sizes):
    assert {row["nodes"] for row in rows} == set(sizes)
    for nodes, cost in sizes.items():
        ours = [row for row in rows if row["nodes"] == nodes and row["whose"] == "ours"]
        assert all(row["verified"] for row in ours)
        assert cost in [(row["steps"], row["bandwidth_factor"]) for row in ours]
    assert all(row["holds"] for row in rows)


def test_small_sizes(tmp_path):
    experiment = load("finder-frontier")
    rows = run_experiment(experiment, True).rows
    check(rows, {nodes: BETTER[nodes] for nodes in (32, 64, 128, 256)})
    printed = next(row for row in rows if row["spec"] == "distreg:4,32")
    assert (printed["whose"], Fraction(printed["bandwidth_factor"])) == ("paper", Fraction("0.969"))
    assert experiment.plot is not None
    for suffix, begin in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")):
        file, again = tmp_path / f"frontiers{suffix}", tmp_path / f"again{suffix}"
        for path in (file, again):
            experiment.plot(rows, path)
        assert file.read_bytes().startswith(begin)
        assert file.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_all_sizes():
    rows = run_experiment(load("finder-frontier"), False).rows
    check(rows, {**BETTER, 1024: BETTER_AT_1024})
