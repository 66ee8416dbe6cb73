"""Fabrics with switches that add: bounds, schedules, NCCL by model and as published."""

import pytest

from chorale.experiments.ours.in_network import (
    FABRICS,
    MIXED,
    PUBLISHED,
    PUBLISHED_RATES,
    RANDOM,
)


@pytest.mark.parametrize(("spec", "alone", "bound"), [("h100:1", 257.14, 450), ("h100:2", 266.67, 400)])
def test_a_fabric_has_both_bounds_and_what_nccl_reaches(spec, alone, bound):
    [row] = FABRICS.evaluate(spec)
    assert row["holds"], row
    assert (row["alone_algbw"], row["bound_algbw"]) == (pytest.approx(alone, abs=0.01), pytest.approx(bound))
    assert row["simulated_algbw"] < row["algbw"] == pytest.approx(bound)
    assert set(row["nccl_model_algbw"]) == {"tree", "ring", "nvls" if spec == "h100:1" else "nvls_tree"}
    assert row["published_algbw"]
    assert all(column.text(row) for column in FABRICS.columns)


@pytest.mark.parametrize("number", [0, 3, len(PUBLISHED) - 1])
def test_published_rates_lie_below_the_bound_and_near_the_model(number):
    [row] = PUBLISHED_RATES.evaluate(number)
    assert row["holds"], row
    assert row["published_algbw"] <= row["bound_algbw"]


@pytest.mark.slow
@pytest.mark.parametrize("experiment", [RANDOM, MIXED], ids=lambda each: each.name)
def test_random_fabrics(experiment):
    [row] = experiment.evaluate(0)
    assert row["at_gap_0"] + len(row["gaps"]) == row["networks"]
    assert row["holds"], row
