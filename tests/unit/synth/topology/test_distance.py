"""Distances and strong connection against NetworkX."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import (
    diameter,
    distances_from,
    distances_to,
    hop_distances,
    require_strongly_connected,
)
from chorale.synth.topology.formats.networkx_graph import to_networkx
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.strategies import strongly_connected_topologies


def by_networkx(topology: Topology) -> np.ndarray:
    """Return hops from row to column."""
    lengths = dict(nx.all_pairs_shortest_path_length(to_networkx(topology)))
    return np.array([[lengths[u][v] for v in topology.node_ids] for u in topology.node_ids])


@given(strongly_connected_topologies(max_nodes=10, switches=3))
def test_hop_distances(topology):
    expected = by_networkx(topology)
    hops = hop_distances(topology)
    assert hops.dtype == np.uint16
    assert np.array_equal(hops, expected.T)
    assert np.array_equal(distances_to(topology, np.array([1, 0])), expected.T[[1, 0]])
    assert np.array_equal(distances_from(topology, np.array([1, 0])), expected[[1, 0]])


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
        hop_distances(topology)


@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)).filter(lambda ends: ends[0] != ends[1])), st.booleans())
def test_strong_connection_of_many_links(ends, both_ways):
    if both_ways:
        ends |= {(dst, src) for src, dst in ends}
    topology = Topology("x", tuple("012345"), 6, Links.build(Link(u, v) for u, v in ends))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(6))
    graph.add_edges_from(ends)
    if nx.is_strongly_connected(graph):
        require_strongly_connected(topology)
    else:
        with pytest.raises(InvalidInput, match="no path"):
            require_strongly_connected(topology)
