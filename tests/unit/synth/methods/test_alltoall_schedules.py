"""Whole flows and the schedules of their paths: they deliver exactly and cost what their certificate allows."""

from collections.abc import Sequence
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.bounds.certificate import check_alltoall_certificate
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.identity import common_denominator
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.balance import Router, fine_units
from chorale.synth.methods.alltoall.linear_program import Commodities, commodities_of
from chorale.synth.methods.alltoall.rate import PRICE_UNITS, distance_bound, integer_prices
from chorale.synth.methods.alltoall.schedule import alltoall_schedule, require_schedule_size
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.reference.full_alltoall_program import full_alltoall_rate
from tests.strategies import networks, strongly_connected_topologies

EVERY = slice(None)


def net(problem: Commodities, flow: np.ndarray) -> np.ndarray:
    """Return what arrives minus what leaves, by node."""
    result = np.zeros(problem.node_count, dtype=flow.dtype)
    np.add.at(result, problem.dst, flow)
    np.subtract.at(result, problem.src, flow)
    return result


def is_acyclic(problem: Commodities, used: np.ndarray) -> bool:
    graph = nx.DiGraph(zip(problem.src[used].tolist(), problem.dst[used].tolist(), strict=True))
    return nx.is_directed_acyclic_graph(graph)


def random_flows(problem: Commodities, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed)
    flows = noise.exponential(size=(len(problem.sources), problem.link_count))
    return np.where(noise.random(flows.shape) < 0.3, 0.0, flows)


@given(
    strongly_connected_topologies(2, 7, switches=2), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 3, 10, 720720])
)
def test_random_flows_become_whole_ones_that_deliver(topology, seed, units):
    problem = commodities_of(topology)
    router = Router(problem, units)
    whole = router.route(random_flows(problem, seed), EVERY)
    assert whole.min() >= 0
    for source in range(topology.compute_count):
        wanted = problem.demand[0] * units
        wanted[source] = -units * (topology.compute_count - 1)
        assert np.array_equal(net(problem, whole[source]), wanted)
        assert is_acyclic(problem, whole[source] > 0)
    assert np.array_equal(router.loads, whole.sum(axis=0))
    slowest = max(
        Fraction(int(load)) / link.bandwidth
        for load, link in zip(whole.sum(axis=0), (topology.links[int(i)] for i in problem.link_ids), strict=True)
    )
    assert router.rate() == units / slowest


@given(networks(2, 7), st.integers(0, 2**32 - 1))
def test_the_bound_by_prices_is_a_quotient_of_distances(topology, seed):
    problem = commodities_of(topology)
    prices = np.random.default_rng(seed).integers(0, 20, problem.link_count)
    prices[0] += 1
    graph = nx.DiGraph()
    for src, dst, price in zip(problem.src.tolist(), problem.dst.tolist(), prices.tolist(), strict=True):
        graph.add_edge(src, dst, weight=min(price, graph.get_edge_data(src, dst, {"weight": price})["weight"]))
    paid = sum(sum(lengths.values()) for _, lengths in nx.all_pairs_dijkstra_path_length(graph))
    earned = sum(
        int(price) * topology.links[int(i)].bandwidth for price, i in zip(prices, problem.link_ids, strict=True)
    )
    if paid:
        assert distance_bound(problem, prices) == earned / paid


def test_prices_that_nobody_has_to_pay_bound_nothing():
    """Both ways round a ring, only one link dear: every pair has a free path."""
    problem = commodities_of(parse_topology("torus:3x3"), symmetric=False)
    prices = np.zeros(problem.link_count, dtype=np.int64)
    prices[0] = 1
    assert distance_bound(problem, prices) is None


@pytest.mark.parametrize(
    ("prices", "whole"),
    [
        ([0.5, 0.25, 0.0], [PRICE_UNITS, PRICE_UNITS // 2, 0]),
        ([1.0, 1 / 3, -1e-9], [PRICE_UNITS, PRICE_UNITS // 3, 0]),
        ([0.0, 0.0], [1, 1]),
        ([1.0, 18 / 19], [PRICE_UNITS // 19 * 19, PRICE_UNITS // 19 * 18]),
    ],
)
def test_prices_become_whole_numbers_of_the_same_ratios(prices, whole):
    assert integer_prices(np.array(prices)).tolist() == whole


def test_common_denominators_are_found_up_to_a_limit():
    assert common_denominator(np.array([0.25, 5 / 6, 49 / 11, 7]), 10**6) % 132 == 0
    assert common_denominator(np.array([2**0.5]), 10**6) == 1
    assert common_denominator(np.array([1 / 997, 1 / 991]), 1000) == 1
    assert fine_units(100, 1) == fine_units(100, 48) == 720720
    assert fine_units(100, 19) % 19 == 0
    assert fine_units(100, 10**6) == 10**6


def test_a_node_without_any_flow_still_gets_its_share():
    topology = Topology("test", ("0", "1", "2"), 3, Links.build([Link(0, 1), Link(1, 2), Link(2, 0)]))
    problem = commodities_of(topology)
    whole = Router(problem, 5).route(np.zeros((3, 3)), EVERY)
    assert sorted(whole.sum(axis=1).tolist()) == [15, 15, 15]


def gap_of(schedule: Schedule) -> Fraction:
    """Return how much longer the schedule takes than the certificate says is needed."""
    upper = check_alltoall_certificate(schedule.topology, schedule.certificate)
    return verify(schedule).cost.time_per_byte * schedule.topology.compute_count * upper - 1


@given(networks(2, 7))
@random_cases(30)
def test_schedules_verify_and_come_close_to_the_rate(topology):
    schedule = alltoall_schedule(topology)
    best = full_alltoall_rate(topology)
    reached = 1 / (verify(schedule).cost.time_per_byte * topology.compute_count)
    assert float(reached) <= best * (1 + 1e-7)
    assert float(check_alltoall_certificate(topology, schedule.certificate)) >= best * (1 - 1e-7)
    assert 0 <= gap_of(schedule) < 0.12  # at most 64 chunks by default; see the next test


def bundle(forth: Sequence[Fraction | int], back: Sequence[Fraction | int]) -> Topology:
    """Return two ranks with links of these widths from the first to the second and back."""
    ends = [*((0, 1, width) for width in forth), *((1, 0, width) for width in back)]
    links = [Link(src, dst, Fraction(width)) for src, dst, width in ends]
    return Topology("bundle", ("0", "1"), 2, Links.build(links))


def test_chunks_left_over_go_where_they_take_the_least_time():
    topology = bundle((Fraction(25, 4), 5, *[1] * 8), (*[Fraction(25, 4)] * 3, 1))
    schedule = alltoall_schedule(topology, 64)
    # 22 and 18 chunks on the wide links, 3 on each other one: no way of sharing 64 takes less than 18 / 5.
    slowest = Fraction(18, 5) / 64
    assert verify(schedule).cost.time_per_byte * topology.compute_count == slowest
    assert gap_of(alltoall_schedule(topology)) < 0.03


@pytest.mark.parametrize(("spec", "hops"), [("ring:5", 2), ("torus:4x4", 4), ("complete:5", 1), ("uniring:2,4", 3)])
def test_simple_networks_get_optimal_schedules_over_shortest_paths(spec, hops):
    schedule = alltoall_schedule(parse_topology(spec))
    assert gap_of(schedule) == 0
    assert schedule.steps == hops
    verified = verify(schedule)
    assert verified.cost.time_per_byte * alltoall_rate(schedule.topology).rate * schedule.topology.compute_count == 1
    assert verified.link_loads.duplicate_deliveries == 0


def test_prices_make_schedules_too():
    schedule = alltoall_schedule(parse_topology("genkautz:3,20"), 64, Fraction(1, 50), "prices")
    assert schedule.parameters == {"chunks": 64, "solver": "prices"}
    assert 0 <= gap_of(schedule) < 0.05


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "bfb-steps"}, "bfb-steps"),
        ({"prices": [1, 1]}, "one whole number >= 0 per link"),
        ({"prices": [0.5] * 6}, "one whole number >= 0 per link"),
        ({"prices": [0] * 6}, "do not prove 1"),
        ({"prices": [1, 1, 1, 1, 1, 9]}, "do not prove 1"),
        ({"rate_upper": "999/1000"}, "do not prove 999/1000"),
        ({"rate_upper": None}, "a rate_upper that is no rational number"),
    ],
)
def test_a_certificate_that_was_tampered_with(change, message):
    schedule = alltoall_schedule(parse_topology("ring:3"))
    assert check_alltoall_certificate(schedule.topology, schedule.certificate) == 1
    with pytest.raises(CheckFailed, match=message):
        check_alltoall_certificate(schedule.topology, {**schedule.certificate, **change})


def test_schedules_that_are_too_large_are_refused():
    with pytest.raises(InvalidInput, match=r"at most 512 ranks and 4194304 pairs.*, got 600 ranks, 1440000 pairs in"):
        alltoall_schedule(parse_topology("torus:20x30"))
    with pytest.raises(InvalidInput, match="chunks per shard must be 1 to 4096, got 0"):
        require_schedule_size(parse_topology("ring:3"), 0)
