"""The traffic of rings is that of their schedules, on networks too large for these as well."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.methods.rings.rings import ring_traffic
from chorale.synth.schedule.traffic import traffic_of
from chorale.synth.simulation.congestion import congestion_of
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.spec import parse_topology
from tests.strategies import networks

COLLECTIVES = (ALLGATHER, REDUCE_SCATTER, ALLREDUCE)


def check(topology, collective, method):
    schedule = synthesize(method, topology, collective, None, SerialExecutor()).schedule
    expected, traffic = traffic_of(schedule), ring_traffic(topology, collective, method == "biring")
    assert (traffic.kind, traffic.collective) == (expected.kind, collective)
    assert len(traffic.steps) == len(expected.steps)
    for ours, theirs in zip(traffic.steps, expected.steps, strict=True):
        assert sorted(messages(traffic, ours)) == sorted(messages(expected, theirs))


def messages(traffic, step):
    paths = [tuple(traffic.routes.path(route).tolist()) for route in step.route]
    return [(path, int(amount) / traffic.denominator) for path, amount in zip(paths, step.amount, strict=True)]


@pytest.mark.parametrize("method", ["ring", "biring"])
@pytest.mark.parametrize("spec", ["biring:4,5", "switch:4,8", "dbt:6"])
def test_like_the_schedule(spec, method):
    check(parse_topology(spec), ALLREDUCE, method)


@given(networks(2, 7), st.sampled_from(COLLECTIVES), st.sampled_from(["ring", "biring"]))
def test_like_the_schedule_on_any_network(topology, collective, method):
    check(topology, collective, method)


def test_steps_that_are_equal_are_one():
    traffic = ring_traffic(parse_topology("torus:32x32"), ALLREDUCE, bidirectional=False)
    assert len(traffic.steps) == 2 * 1023
    assert len({id(step) for step in traffic.steps}) == 2
    assert np.array_equal(traffic.steps[0].amount, np.ones(1024))


@pytest.mark.parametrize("side", [64, pytest.param(128, marks=pytest.mark.slow)])
def test_thousands_of_ranks(side):
    """2 (N - 1) steps of one hop and 1 / N of the vector over one port."""
    traffic = ring_traffic(parse_topology(f"torus:{side}x{side}"), ALLREDUCE, bidirectional=False)
    model = NetworkModel.of(0, "0.1", "0.3", 400)
    ranks = side * side
    seconds = float(congestion_of(traffic).seconds(model, 2**30))
    assert seconds == pytest.approx(2 * (ranks - 1) * (0.4e-6 + 2**30 / ranks * 8 / 400e9))
