"""Whole flows: they deliver exactly, have no cycles, and stay close to what they were made from."""

from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.identity import common_denominator
from chorale.synth.methods.alltoall.balance import Router, fine_units
from chorale.synth.methods.alltoall.linear_program import Commodities, commodities_of
from chorale.synth.methods.alltoall.rate import PRICE_UNITS, distance_bound, integer_prices
from chorale.synth.methods.alltoall.schedule import flow_paths_of
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
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


def test_rounding_favours_links_that_were_passed_over():
    """Two ways of equal flow and one chunk per pair: over all sources, both ways get about half."""
    topology = parse_topology("torus:4x4")
    problem = commodities_of(topology, symmetric=False)
    ideal = np.zeros((16, problem.link_count))
    fine = Router(problem, 720720)
    ideal = fine.route(random_flows(problem, 3) * 0 + 1.0, EVERY) / 720720
    coarse = Router(problem, 1)
    coarse.route(ideal, EVERY)
    assert abs(coarse.loads - ideal.sum(axis=0)).max() < 4


@given(networks(2, 7), st.integers(0, 2**32 - 1), st.sampled_from([1, 2, 5, 12]))
def test_paths_add_up_to_the_flows(topology, seed, units):
    problem = commodities_of(topology)
    whole = Router(problem, units).route(random_flows(problem, seed), EVERY)
    paths = flow_paths_of(problem, EVERY, whole)
    summed = np.zeros_like(whole)
    carried: dict[tuple[int, int], list[int]] = {}
    for row in range(len(paths.source)):
        path = paths.links[paths.offsets[row] : paths.offsets[row + 1]]
        source, target = int(paths.source[row]), int(paths.target[row])
        assert problem.src[path[0]] == source
        assert problem.dst[path[-1]] == target
        assert np.array_equal(problem.dst[path[:-1]], problem.src[path[1:]])
        summed[source, path] += paths.amount[row]
        first = int(paths.lo[row])
        carried.setdefault((source, target), []).extend(range(first, first + int(paths.amount[row])))
    assert np.array_equal(summed, whole)
    pairs = {(s, t) for s in range(topology.compute_count) for t in range(topology.compute_count) if s != t}
    assert carried.keys() == pairs
    assert all(chunks == list(range(units)) for chunks in carried.values())


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


@given(st.lists(st.fractions(0, 50, max_denominator=12), min_size=1, max_size=8))
def test_common_denominators_are_found(fractions):
    denominator = common_denominator(np.array([float(value) for value in fractions]), 10**6)
    assert all((value * denominator).denominator == 1 for value in fractions)


def test_no_common_denominator():
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
