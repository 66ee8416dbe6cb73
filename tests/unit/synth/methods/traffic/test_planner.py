"""Plans of given traffic against a linear program over all paths; certificates; plans after plans."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.traffic.certificate import check_traffic_certificate
from chorale.synth.methods.traffic.matrix import traffic_matrix, zipf_matrix
from chorale.synth.methods.traffic.plan import certificate_of, traffic_schedule
from chorale.synth.methods.traffic.planner import plan_traffic, replan
from chorale.synth.topology.spec import parse_topology
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.reference.simple_paths import least_time
from tests.strategies import networks


def amounts_for(topology, draw_seed):
    """Return random amounts, some of them 0, never all."""
    ranks = topology.compute_count
    amounts = np.random.default_rng(draw_seed).integers(0, 60, (ranks, ranks))
    amounts[amounts < 15] = 0
    amounts[0, 1] += 1
    return amounts


@given(networks(2, 5), st.integers(0, 1000))
@random_cases(15)
def test_bounds_and_flows_meet_the_least_time_over_all_paths(topology, seed):
    amounts = amounts_for(topology, seed)
    plan = plan_traffic(topology, traffic_matrix("random", amounts))
    least = least_time(topology, amounts)
    assert float(plan.bound.time) <= least * (1 + 1e-7)
    assert float(plan.bound.time) >= least * (1 - 1e-4)
    assert least * (1 - 1e-7) <= float(plan.fluid) <= least * 1.02
    assert plan.fluid <= plan.time
    assert check_traffic_certificate(topology, certificate_of(plan)) == plan.bound.time


@given(networks(2, 6), st.integers(0, 1000), st.integers(0, 1000))
@random_cases(8)
def test_schedules_of_plans_and_of_later_plans_verify_and_take_as_long(topology, seed, later):
    first = plan_traffic(topology, traffic_matrix("first", amounts_for(topology, seed)))
    second = replan(first, traffic_matrix("second", amounts_for(topology, later)), Fraction(1, 50))
    for plan in (first, second):
        schedule = traffic_schedule(plan)
        moved = verify(schedule).cost.time_per_byte / schedule.chunk_part * plan.chunks.chunk
        assert moved == plan.time >= check_traffic_certificate(topology, schedule.certificate)


@pytest.mark.parametrize("spec", ["mesh:2x3", "a100:1", "hypercube:3"])
def test_skews_are_planned_at_the_bound_and_again_within_half_a_percent(spec):
    topology = parse_topology(spec)
    ranks = topology.compute_count
    plan = plan_traffic(topology, zipf_matrix(ranks, 1.2, 0))
    assert plan.fluid == plan.bound.time
    assert plan.gap < Fraction(1, 1000)
    for seed in (1, 2):
        before, plan = plan, replan(plan, zipf_matrix(ranks, 1.2, seed))
        again = replan(before, zipf_matrix(ranks, 1.2, seed))
        assert traffic_schedule(plan).id == traffic_schedule(again).id
        assert plan.method in ("warm", "prices", "lp", "direct")
        assert 0 <= plan.gap <= Fraction(1, 200)


def test_equal_amounts_are_the_all_to_all():
    topology = parse_topology("mesh:2x3")
    rate = alltoall_rate(topology)
    plan = plan_traffic(topology, traffic_matrix("even", np.full((6, 6), 120)))
    assert plan.bound.time == 120 / rate.upper
    assert plan.fluid == 120 / rate.lower


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "alltoall-prices"),
        ("prices", [1, 2]),
        ("prices", None),
        ("amounts", [[0, 1]]),
        ("amounts", None),
        ("time_lower", "x"),
        ("time_lower", "1000000"),
    ],
)
def test_forged_certificates_are_refused(key, value):
    plan = plan_traffic(parse_topology("ring:4"), zipf_matrix(4, 1, 0))
    with pytest.raises(CheckFailed):
        check_traffic_certificate(plan.topology, {**certificate_of(plan), key: value})


def test_a_matrix_for_other_ranks_is_refused():
    with pytest.raises(InvalidInput, match="a row for each of the 4 ranks of ring:4"):
        plan_traffic(parse_topology("ring:4"), zipf_matrix(5, 1, 0))


def test_finer_chunks_follow_the_flows_that_were_balanced_finely():
    plan = plan_traffic(parse_topology("hypercube:4"), zipf_matrix(16, 0.0, 0))
    assert plan.gap == 0
