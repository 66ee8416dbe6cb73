"""Hops between all pairs, in bits and node by node, are those of a search of NetworkX."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.distance import UNREACHED, hops_between_all


def check(nodes: int, arcs: list[tuple[int, int]]) -> np.ndarray:
    """Check the hops along `arcs`; return them."""
    arcs = sorted(set(arcs))
    offsets = np.searchsorted([tail for tail, _ in arcs], np.arange(nodes + 1)).astype(np.int64)
    hops = hops_between_all(offsets, np.array([head for _, head in arcs], dtype=np.int32))
    graph = nx.DiGraph(arcs)
    graph.add_nodes_from(range(nodes))
    expected = np.full((nodes, nodes), UNREACHED)
    for node, lengths in nx.all_pairs_shortest_path_length(graph):
        expected[node, list(lengths)] = list(lengths.values())
    assert hops.dtype == np.uint16
    assert np.array_equal(hops, expected)
    return hops


@given(st.data())
def test_any_network(data):
    nodes = data.draw(st.integers(1, 70))
    node = st.integers(0, nodes - 1)
    check(nodes, data.draw(st.lists(st.tuples(node, node), max_size=4 * nodes)))


@pytest.mark.parametrize("nodes", [2, 63, 64, 65, 66, 129])
def test_one_way_rings_around_the_limit_of_the_bits(nodes):
    assert check(nodes, [(node, (node + 1) % nodes) for node in range(nodes)]).max() == nodes - 1
