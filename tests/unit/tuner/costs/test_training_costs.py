"""Costs of collectives in training against closed forms."""

from __future__ import annotations

import pytest

from chorale.synth.errors import InvalidInput
from chorale.tuner.costs.pricing import Pricing
from chorale.tuner.costs.training import split_network, training_costs

GIVEN = {"alpha_us": "10", "link_latency_us": "0", "hop_us": "0", "link_gbps": "25"}


def test_allreduce_and_alltoall_on_a_complete_network():
    """5 nodes, 4 links each: one step each way, 1/5 of the vector over every link; one hop for every token."""
    costs = training_costs("bfb", "complete:5", Pricing.of(GIVEN, None), with_alltoall=True)
    link = 25e9 / 8
    assert costs.allreduce_s(10**6) == pytest.approx(2 * (10e-6 + 10**6 / 5 / link))
    assert costs.alltoall_s(10**6) == pytest.approx(10**6 / 5 / link, rel=0.011)


def test_alltoall_must_be_asked_for():
    costs = training_costs("hamiltonian-ring", "shiftedring:8", Pricing.of(GIVEN, None), with_alltoall=False)
    assert costs.allreduce_s(8 * 10**6) == pytest.approx(14 * 10e-6 + 2 * 7 / 8 * 8 * 10**6 / 12.5e9)
    with pytest.raises(ValueError, match="without"):
        costs.alltoall_s(1)


def test_a_rate_is_needed():
    with pytest.raises(InvalidInput, match="link rate"):
        training_costs("bfb", "ring:4", Pricing.of(dict.fromkeys(GIVEN), None), with_alltoall=False)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("torus:4x4", ("bfb", "torus:4x4")),
        ("swing@torus:4x4", ("swing", "torus:4x4")),
        ("file:a@b.json", ("bfb", "file:a@b.json")),
        ("ring@file:a@b.json", ("ring", "file:a@b.json")),
    ],
)
def test_methods_before_specs(text, parts):
    assert split_network(text) == parts
