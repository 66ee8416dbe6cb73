"""The first-order method: its projection by brute force, its progress, its stop."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.methods.alltoall import first_order
from chorale.synth.methods.alltoall.commodities import commodities_of
from chorale.synth.methods.alltoall.flow_kernels import hop_counts, shortest_flows
from chorale.synth.methods.alltoall.rate import distance_bound, integer_prices
from chorale.synth.methods.alltoall.routing import Router, fine_units
from chorale.synth.topology.distance import hop_distances
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.strategies import networks, strongly_connected_topologies


def gap_of(topology: Topology, flows: np.ndarray, prices: np.ndarray) -> Fraction:
    problem = commodities_of(topology)
    router = Router(problem, fine_units(problem.node_count))
    router.route(flows, slice(None))
    upper = distance_bound(problem, integer_prices(prices))
    assert upper is not None
    return upper / router.rate() - 1


@given(networks(2, 6))
def test_it_stops_where_the_bounds_are_close_enough(topology):
    flows, prices = first_order.solve(commodities_of(topology), Fraction(1, 50), 10_000, None)
    assert gap_of(topology, flows, prices) <= Fraction(1, 50)


def test_it_stops_after_the_most_iterations(monkeypatch):
    reported = []
    problem = commodities_of(parse_topology("genkautz:3,40"))
    iterations = []
    step = first_order.PrimalDualIteration._step
    monkeypatch.setattr(first_order.PrimalDualIteration, "_step", lambda method: iterations.append(1) or step(method))
    first_order.solve(problem, Fraction(0), 120, lambda lower, upper: reported.append((lower, upper)))
    assert len(iterations) == 120
    assert reported
    for (lower, upper), (later_lower, later_upper) in pairwise(reported):
        assert lower <= later_lower < later_upper <= upper  # bounds only ever close in


def test_more_iterations_come_closer():
    topology = parse_topology("genkautz:3,40")
    problem = commodities_of(topology)
    few, many = (gap_of(topology, *first_order.solve(problem, Fraction(0), most, None)) for most in (40, 400))
    assert 0 < many < few


@given(
    st.lists(st.floats(-1, 2), min_size=1, max_size=6),
    st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=6, max_size=6),
    st.lists(st.integers(1, 4), min_size=6, max_size=6),
    st.integers(0, 2**32 - 1),
)
def test_the_projection_is_the_nearest_point(values, capacities, sizes, seed):
    prices = np.array(values)
    capacity, size = np.array(capacities[: len(values)]), np.array(sizes[: len(values)])
    nearest = first_order._project(prices, capacity, size)
    assert nearest.min() >= 0
    assert np.isclose(np.sum(size * capacity * nearest), 1.0)
    # A point of a convex set is nearest exactly if no direction into the set leads towards the given point.
    noise = np.random.default_rng(seed)
    for _ in range(20):
        other = noise.exponential(size=len(values))
        other /= np.sum(size * capacity * other)
        assert np.sum(size * (prices - nearest) * (other - nearest)) <= 1e-9


@given(strongly_connected_topologies(2, 7, switches=2))
def test_it_starts_from_shortest_flows(topology):
    problem = commodities_of(topology)
    hops = hop_counts(problem)
    assert np.array_equal(hops, hop_distances(topology).T[: topology.compute_count])
    flows = shortest_flows(problem, hops)
    total = sum(hops[:, : topology.compute_count].sum(axis=1))
    assert np.isclose(flows.sum(), total)
    for source in range(topology.compute_count):
        used = flows[source] > 0
        assert np.all(hops[source, problem.dst[used]] == hops[source, problem.src[used]] + 1)
