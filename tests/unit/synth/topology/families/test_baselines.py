"""Shifted rings and double binary trees."""

import math

import networkx as nx
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.distance import diameter
from chorale.synth.topology.spec import parse_topology
from tests.links import both_directions, graph_of, links_of


@given(st.integers(3, 60))
def test_shiftedring_is_two_rings_over_all_nodes(m):
    topology = parse_topology(f"shiftedring:{m}")
    stride = max(s for s in range(1, m) if 2 * s < m and math.gcd(s, m) == 1)
    rings = [(i * s % m, (i + 1) * s % m) for s in (1, stride) for i in range(m)]
    assert links_of(topology) == both_directions(rings)
    assert topology.degree == 4


def test_the_second_ring_of_1024_nodes_runs_almost_across():
    assert links_of(parse_topology("shiftedring:1024"))[0, 511] == 1


def test_double_binary_tree_of_eight_by_hand():
    first = [(0, 4), (4, 2), (4, 6), (2, 1), (2, 3), (6, 5), (6, 7)]
    mirrored = [(7 - parent, 7 - child) for parent, child in first]
    assert links_of(parse_topology("dbt:8")) == both_directions(first + mirrored)


def test_double_binary_tree_of_five_by_hand():
    first = [(0, 4), (4, 2), (2, 1), (2, 3)]
    shifted = [((parent + 1) % 5, (child + 1) % 5) for parent, child in first]
    assert links_of(parse_topology("dbt:5")) == both_directions(first + shifted)


@given(st.integers(2, 200))
def test_double_binary_tree(m):
    topology = parse_topology(f"dbt:{m}")
    links = links_of(topology)
    assert sum(links.values()) == 4 * (m - 1)
    assert all(links[dst, src] == count for (src, dst), count in links.items())
    assert max(degree for _, degree in graph_of(topology).out_degree()) <= 4
    assert nx.is_connected(nx.Graph(graph_of(topology)))
    assert diameter(topology) <= 2 * math.log2(m) + 2
