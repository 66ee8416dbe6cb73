"""The congestion model: exact costs, closed forms, latencies along routes, pipelines."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER, Collective
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.schedule.schedule import Routes
from chorale.synth.schedule.traffic import Traffic, TrafficStep, traffic_of
from chorale.synth.simulation.congestion import congestion_of
from chorale.synth.simulation.flow_simulation import NetworkModel
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.strategies import MIXED, strongly_connected_topologies

LATENCIES = (Fraction(0), Fraction(1, 3), Fraction(2, 7))


def step_of(*messages: tuple[int, int]) -> TrafficStep:
    route, amount = zip(*messages, strict=True)
    return TrafficStep(np.array(route, dtype=np.int32), np.array(amount, dtype=np.int64))


def test_ring_allreduce_has_its_closed_form():
    traffic = traffic_of(synthesize("ring", parse_topology("ring:8"), ALLREDUCE, None, SerialExecutor()).schedule)
    model = NetworkModel.of(alpha_us=3, link_latency_us="0.1", hop_us="0.3", link_gbps=10)
    seconds = congestion_of(traffic).seconds(model, 8000)
    assert seconds == 14 * (Fraction(34, 10) + Fraction(8000, 10_000)) / 10**6


@pytest.mark.parametrize("method", ["bfb", "ring", "biring"])
@pytest.mark.parametrize("collective", [ALLGATHER, REDUCE_SCATTER, ALLREDUCE], ids=str)
@given(topology=strongly_connected_topologies(2, 6, bandwidths=MIXED, latencies_s=LATENCIES))
def test_seconds_are_the_cost_that_verification_finds(method: str, collective: Collective, topology: Topology):
    try:
        verified = synthesize(method, topology, collective, None, SerialExecutor())
    except InvalidInput as refusal:  # a network whose optimum needs too many chunks: tests of bfb are about that
        if "chunks per shard" not in str(refusal):
            raise
        reject()
    congestion = congestion_of(traffic_of(verified.schedule))
    free = NetworkModel.of(link_gbps="8e-9")
    without_bytes = congestion.seconds(free, 0)
    assert without_bytes == verified.cost.latency_s
    # Far above all latencies, every further byte costs what the schedule says.
    large = 10**9
    assert congestion.seconds(free, 2 * large) - congestion.seconds(free, large) == verified.cost.time_per_byte * large


def test_a_step_ends_with_its_slowest_message_not_with_the_sum_of_the_worst():
    # The busy link is one hop long; the long way carries little: neither waits for the other.
    links = Links.build([Link(0, 1), Link(1, 2), Link(2, 3)])
    topology = Topology("path", tuple("abcd"), 4, links)
    routes = Routes.of_paths([[0], [1, 2]])
    traffic = Traffic(topology, ALLGATHER, "stepped", (step_of((0, 6), (1, 1)),), 10, routes)
    model = NetworkModel.of(hop_us=2e6, link_gbps="8e-9")
    assert congestion_of(traffic).seconds(model, 10) == 2 + 6
    assert congestion_of(traffic).seconds(model, 1) == 4 + Fraction(1, 10)


def test_messages_meet_on_links_of_their_routes():
    topology = Topology("path", tuple("abc"), 3, Links.build([Link(0, 1, Fraction(3)), Link(1, 2, Fraction(2))]))
    routes = Routes.of_paths([[0, 1], [1]])
    traffic = Traffic(topology, ALLGATHER, "stepped", (step_of((0, 5), (1, 3)),), 8, routes)
    assert congestion_of(traffic).seconds(NetworkModel.of(link_gbps="8e-9"), 8) == Fraction(8, 2)


def test_equal_steps_are_looked_at_once_and_counted():
    step = step_of((0, 1))
    traffic = Traffic(parse_topology("ring:3"), ALLGATHER, "stepped", (step,) * 5, 3, Routes.direct(6))
    congestion = congestion_of(traffic)
    assert list(congestion.steps.values()) == [5]
    assert congestion.seconds(NetworkModel.of(link_gbps="8e-9"), 3) == 5


def test_empty_steps_take_no_time():
    empty = TrafficStep(np.zeros(0, np.int32), np.zeros(0, np.int64))
    traffic = Traffic(
        parse_topology("ring:3"), ALLGATHER, "stepped", (empty, step_of((0, 1)), empty), 3, Routes.direct(6)
    )
    assert congestion_of(traffic).seconds(NetworkModel.of(1, link_gbps="8e-9"), 3) == 1 + Fraction(1, 10**6)


def streaming(levels: int) -> Traffic:
    """A chain along which 4 bytes stream at a byte a second."""
    topology = Topology(
        "path", tuple(map(str, range(levels + 1))), levels + 1, Links.build(Link(i, i + 1) for i in range(levels))
    )
    steps = tuple(step_of((level, 1)) for level in range(levels))
    return Traffic(topology, ALLGATHER, "pipelined", steps, 1, Routes.direct(levels))


@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_chunks_stream_through_the_levels(chunks: int):
    model = NetworkModel.of(alpha_us=1e6, hop_us=2e6, link_gbps="8e-9")
    # P + h - 1 rounds of 4 / P seconds, alpha for each of the P chunks and each level but one, latency of h hops
    expected = (chunks + 3 - 1) * (Fraction(4, chunks) + 1) + 3 * 2
    assert congestion_of(streaming(3)).seconds(model, 4, chunks) == expected


@given(st.integers(1, 6), st.integers(1, 1000), st.integers(0, 20))
def test_the_best_number_of_chunks_is_found(levels: int, size_bytes: int, alpha_s: int):
    congestion = congestion_of(streaming(levels))
    model = NetworkModel.of(alpha_us=alpha_s * 10**6, link_gbps="8e-9")
    best = congestion.seconds(model, size_bytes)
    tried = [congestion.seconds(model, size_bytes, chunks) for chunks in range(1, 80)]
    assert best <= min(tried)
    assert alpha_s == 0 or best in [congestion.seconds(model, size_bytes, chunks) for chunks in range(1, 80)]
