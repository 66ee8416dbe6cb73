"""The frontiers of all sizes: who is ahead, and what it means not to be."""

from __future__ import annotations

import dataclasses

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment
from tests.chosen_cases import with_cases


def up_to(largest):
    return with_cases("frontier-all", lambda cases: [(bases, largest) for bases, _ in cases])


def test_small_sizes(tmp_path):
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
