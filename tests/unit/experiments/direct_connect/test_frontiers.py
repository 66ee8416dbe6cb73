"""Our frontiers beside the printed one, and for all sizes."""

import dataclasses
from fractions import Fraction

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from tests.chosen_cases import with_cases

BETTER = {32: (3, "31/32"), 64: (4, "63/64"), 128: (4, "127/128"), 256: (5, "255/256"), 512: (5, "511/512")}


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


def up_to(largest):
    return with_cases("frontier-all", lambda cases: [(bases, largest) for bases, _ in cases])


def test_all_frontiers_of_small_sizes(tmp_path):
    rows = run_experiment(up_to(40), True).rows
    assert [row["spec"] for row in rows[:4]] == [
        f"{sizes} nodes, degree 4" for sizes in ("5 to 7", "8 to 15", "16 to 31", "32 to 40")
    ]
    assert [row["sizes"] for row in rows[:4]] == [3, 8, 16, 9]
    assert all(row["holds"] for row in rows)
    assert [row["verdict"] for row in rows[4:]] == ["better", "better"]
    for row in rows[:4]:
        assert all(least <= own <= paper for curve in row["curves"].values() for _, own, paper, least in curve)
    load("frontier-all").plot(rows, tmp_path / "all.svg")
    assert "printed points" in (tmp_path / "all.svg").read_text()


def test_a_frontier_that_falls_behind_does_not_hold():
    honest = up_to(33)
    swapped = dataclasses.replace(honest, conclude=lambda parts: honest.conclude(parts[::-1]))
    rows = run_experiment(swapped, True).rows
    assert [row["holds"] for row in rows if "behind" in row] == [True, False, False, False]
    assert rows[3]["behind"] == [32]
    assert rows[3]["reason"] == "behind the paper's bases at [32]"
