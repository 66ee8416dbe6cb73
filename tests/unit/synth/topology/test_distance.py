"""Hops, diameters, components and links that all shortest paths share, against NetworkX and searches of every path."""

import dataclasses
from contextlib import nullcontext

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import (
    diameter,
    distances_from,
    distances_to,
    hops_along,
    require_strongly_connected,
)
from chorale.synth.topology.formats.networkx_graph import to_networkx
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology, connected_labels
from tests.strategies import strongly_connected_topologies


@given(strongly_connected_topologies(max_nodes=10, switches=3))
def test_hop_distances(topology):
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(topology)))
    expected = np.array([[lengths[u][v] for v in topology.node_ids] for u in topology.node_ids])  # from row to column
    hops = distances_to(topology)
    assert hops.dtype == np.uint16
    assert np.array_equal(hops, expected.T)
    assert np.array_equal(distances_to(topology, np.array([1, 0])), expected.T[[1, 0]])
    assert np.array_equal(distances_from(topology, np.array([1, 0])), expected[[1, 0]])
    ranks = topology.compute_count
    assert diameter(topology) == expected[:ranks, :ranks].max()


def test_distances_beyond_sixteen_bits():
    assert diameter(parse_topology("uniring:1,70000")) == 69999


@pytest.mark.parametrize(
    ("links", "names"), [([(0, 1), (1, 0), (1, 2)], "from 2 to 0"), ([(0, 1), (1, 0), (2, 1)], "from 0 to 2")]
)
def test_missing_path_is_named(links, names):
    topology = Topology("x", ("0", "1", "2"), 3, Links.build(Link(u, v) for u, v in links))
    with pytest.raises(InvalidInput, match=f"no path {names}"):
        require_strongly_connected(topology)
    with pytest.raises(InvalidInput, match=f"no path {names}"):
        distances_to(topology)


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda ends: ends[0] != ends[1])), st.booleans())
def test_strong_connection_of_many_links(ends, both_ways):
    ends |= {(dst, src) for src, dst in ends if both_ways}
    topology = Topology("x", tuple("012345"), 6, Links.build(Link(u, v) for u, v in ends))
    graph = nx.DiGraph(ends)
    graph.add_nodes_from(range(6))
    with nullcontext() if nx.is_strongly_connected(graph) else pytest.raises(InvalidInput, match="no path"):
        require_strongly_connected(topology)


@given(st.data())
def test_hops_along_any_arcs(data):
    nodes = data.draw(st.integers(1, 70))
    node = st.integers(0, nodes - 1)
    arcs = sorted(data.draw(st.sets(st.tuples(node, node), max_size=4 * nodes)))
    offsets = np.searchsorted([tail for tail, _ in arcs], np.arange(nodes + 1)).astype(np.int64)
    hops = hops_along((offsets, np.array([head for _, head in arcs], dtype=np.int32)))
    graph = nx.DiGraph(arcs)
    graph.add_nodes_from(range(nodes))
    expected = np.full((nodes, nodes), 2**16 - 1)
    for tail, lengths in nx.all_pairs_shortest_path_length(graph):
        expected[tail, list(lengths)] = list(lengths.values())
    assert hops.dtype == np.uint16
    assert np.array_equal(hops, expected)


@pytest.mark.parametrize("spec", ["genkautz:3,700", "kautz:2,8", "torus:8x9", "hxmesh:4,5x4", "a100:40"])
def test_large_networks(spec):
    topology = parse_topology(spec)
    ranks = np.arange(topology.compute_count)
    expected = distances_from(topology, ranks)[:, : len(ranks)]
    assert diameter(topology) == diameter(dataclasses.replace(topology, automorphisms=())) == expected.max()


def test_a_wrong_symmetry_is_not_believed():
    wrong = np.array([1, 2, 3, 0], dtype=np.int32)
    assert diameter(dataclasses.replace(parse_topology("mesh:4"), automorphisms=(wrong,))) == 3


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40))
def test_labels_number_components_by_their_first_nodes(count, edges):
    edges = [(one % count, other % count) for one, other in edges]
    graph = nx.Graph(edges)
    graph.add_nodes_from(range(count))
    expected = np.empty(count, dtype=np.int32)
    for number, component in enumerate(sorted(nx.connected_components(graph), key=min)):
        expected[list(component)] = number
    src, dst = (np.array([edge[end] for edge in edges], dtype=np.int64) for end in (0, 1))
    labels = connected_labels(count, src, dst)
    assert labels.dtype == np.int32
    assert np.array_equal(labels, expected)


def test_long_rings_in_any_order_are_one_component():
    order = np.random.default_rng(1).permutation(5_000)
    assert not connected_labels(len(order), order, np.roll(order, 1)).any()
