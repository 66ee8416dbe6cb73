"""Training on one network or another beside the paper's findings."""

from __future__ import annotations

import pytest

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.run import run_experiment


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
def test_experts_in_haste():
    rows = check("training-experts", True, 5)
    assert {row["nodes"] for row in rows} == {256}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_experts_on_all_sizes():
    check("training-experts", False, 13)
