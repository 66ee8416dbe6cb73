"""Traffic is the schedule's rows added up, nothing else."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given

from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.alltoall.schedule import alltoall_schedule
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.traffic import Traffic, TrafficStep, merged_step, traffic_of
from chorale.synth.topology.spec import parse_topology
from tests.strategies import networks

SERIAL = SerialExecutor()


def added_up(schedule) -> Counter:
    """Return {(step, route): chunks}, row by row."""
    total: Counter = Counter()
    for step, route, lo, hi in zip(*(schedule.transfers.columns[i].tolist() for i in (0, 1, 3, 4)), strict=True):
        total[step, route] += hi - lo
    return total


def messages(traffic: Traffic) -> dict:
    return {
        (number, route): amount
        for number, step in enumerate(traffic.steps)
        for route, amount in zip(step.route.tolist(), step.amount.tolist(), strict=True)
    }


@given(networks(2, 6))
def test_traffic_adds_up_the_rows(topology):
    for method in ("bfb", "ring"):
        schedule = synthesize(method, topology, ALLREDUCE, None, SERIAL).schedule
        traffic = traffic_of(schedule)
        assert messages(traffic) == added_up(schedule)
        assert len(traffic.steps) == schedule.steps


def test_loads_agree_with_the_verified_cost():
    verified = synthesize("ring", parse_topology("mesh:3x3"), ALLREDUCE, None, SERIAL)  # no cycle: long routes
    traffic = traffic_of(verified.schedule)
    slowest = sum(int(traffic.link_amounts(step).max()) for step in traffic.steps)
    assert Fraction(slowest, traffic.denominator) == verified.cost.time_per_byte


def test_ends_and_shares():
    traffic = traffic_of(synthesize("ring", parse_topology("uniring:1,3"), ALLGATHER, None, SERIAL).schedule)
    step = traffic.steps[1]
    assert traffic.denominator == 3
    assert step.amount.tolist() == [1, 1, 1]
    assert set(zip(traffic.src(step).tolist(), traffic.dst(step).tolist(), strict=True)) == {(0, 1), (1, 2), (2, 0)}


def test_alltoall_counts_shares_of_the_vector_of_a_rank():
    topology = parse_topology("complete:3")
    traffic = traffic_of(alltoall_schedule(topology))
    assert traffic.collective == ALLTOALL
    sent = sum(int(step.amount.sum()) for step in traffic.steps)
    assert Fraction(sent, traffic.denominator) == 3 * Fraction(2, 3)


def test_messages_over_one_route_are_merged():
    step = merged_step(np.array([5, 2, 5]), np.array([1, 10, 100]))
    assert step.route.tolist() == [2, 5]
    assert step.amount.tolist() == [10, 101]
    assert step.route.dtype == np.int32
    assert step.amount.dtype == np.int64


@pytest.mark.parametrize("empty", [merged_step(np.zeros(0, int), np.zeros(0, int))])
def test_a_step_may_be_empty(empty):
    topology = parse_topology("ring:3")
    like = traffic_of(synthesize("ring", topology, ALLGATHER, None, SERIAL).schedule)
    traffic = Traffic(topology, ALLGATHER, "stepped", (empty, *like.steps), like.denominator, like.routes)
    assert isinstance(empty, TrafficStep)
    assert traffic.link_amounts(traffic.steps[0]).tolist() == [0] * 6
