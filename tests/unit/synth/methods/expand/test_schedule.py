"""Stored schedules: they verify, are optimal, and are refused where they do not belong."""

from fractions import Fraction

import pytest

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.expand.expand import base_schedule
from chorale.synth.methods.expand.prediction import prediction_of
from chorale.synth.topology.bases.database import base_entry
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import transpose
from chorale.synth.verify.verify import verify
from tests.bfb_cost import bfb_cost


@pytest.mark.parametrize(
    ("name", "spec", "steps"),
    [
        ("diamond", "diamond", 3),
        ("dbjmod-2-3", "dbjmod:2,3", 4),
        ("dbjmod-2-4", "dbjmod:2,4", 5),
        ("dbjmod-3-2", "dbjmod:3,2", 3),
        ("dbjmod-4-2", "dbjmod:4,2", 3),
    ],
)
def test_better_than_bfb(name, spec, steps):
    schedule = base_schedule(name, parse_topology(spec))
    cost = verify(schedule).cost
    nodes = schedule.topology.compute_count
    assert (cost.steps, cost.bandwidth_factor) == (steps, Fraction(nodes - 1, nodes))
    assert schedule.topology.spec == spec
    assert schedule.id == base_schedule(name).id
    bfb_factor = bfb_cost(spec)[1]
    assert bfb_factor is not None
    assert bfb_factor > cost.bandwidth_factor


@pytest.mark.parametrize("name", ["diamond", "dbjmod-2-4", "dbjmod-3-2", "dbjmod-4-2"])
def test_the_claim_holds_for_the_transpose_too(name):
    schedule, claim = base_schedule(name, transposed=True), base_entry(name).claim
    cost = verify(schedule).cost
    assert schedule.topology.id == transpose(base_schedule(name).topology).id
    assert (cost.steps, cost.bandwidth_factor) == (claim.steps, claim.bandwidth_factor)
    assert prediction_of(schedule).loads == prediction_of(base_schedule(name)).loads


@pytest.mark.parametrize(
    ("name", "spec", "error"),
    [
        ("dbjmod-2-3", None, "the transpose of the base has no stored schedule: dbjmod-2-3; "
         "use the method expand, which makes one from the stored schedule or by bfb"),
        ("diamond", "diamond", "the topology must be the transpose of the base diamond, got diamond; "
         "use transpose(base:diamond)"),
    ],
)  # fmt: skip
def test_errors_of_the_transpose(name, spec, error):
    with pytest.raises(InvalidInput) as caught:
        base_schedule(name, None if spec is None else parse_topology(spec), transposed=True)
    assert str(caught.value) == error


@pytest.mark.parametrize(
    ("name", "spec", "error"),
    [
        ("d3", None, "the base d3 has no schedule that could be expanded; "
         "use the method bfb, which reaches 3 steps"),
        ("diamond", "dbjmod:2,3", "the topology must be that of the base diamond, got dbjmod:2,3; use base:diamond"),
    ],
)  # fmt: skip
def test_errors(name, spec, error):
    with pytest.raises(InvalidInput) as caught:
        base_schedule(name, None if spec is None else parse_topology(spec))
    assert str(caught.value) == error
