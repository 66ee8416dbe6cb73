"""The fifteen graphs of table 8: intersection arrays by brute force, known graphs, BFB."""

import networkx as nx
import numpy as np
import pytest

from chorale.synth.topology.automorphism import automorphisms_are_transitive, checked_orbits, is_automorphism
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal
from tests.links import graph_of, links_of

# Brouwer, Cohen, Neumaier, "Distance-Regular Graphs": {b0, b1, …; c1, c2, …}; steps as in table 8.
INTERSECTION_ARRAYS = {
    6: ([4, 1], [1, 4]),
    9: ([4, 2], [1, 2]),
    10: ([4, 3, 1], [1, 3, 4]),
    14: ([4, 3, 2], [1, 2, 4]),
    15: ([4, 2, 1], [1, 1, 4]),
    16: ([4, 3, 2, 1], [1, 2, 3, 4]),
    21: ([4, 2, 2], [1, 1, 2]),
    26: ([4, 3, 3], [1, 1, 4]),
    32: ([4, 3, 3, 1], [1, 1, 3, 4]),
    35: ([4, 3, 3], [1, 1, 2]),
    45: ([4, 2, 2, 2], [1, 1, 1, 2]),
    70: ([4, 3, 3, 2, 2, 1, 1], [1, 1, 2, 2, 3, 3, 4]),
    80: ([4, 3, 3, 3], [1, 1, 1, 4]),
    189: ([4, 2, 2, 2, 2, 2], [1, 1, 1, 1, 1, 2]),
    728: ([4, 3, 3, 3, 3, 3], [1, 1, 1, 1, 1, 4]),
}
STEPS_OF_TABLE_8 = {
    6: 2,
    9: 2,
    10: 3,
    14: 3,
    15: 3,
    16: 4,
    21: 3,
    26: 3,
    32: 4,
    35: 3,
    45: 4,
    70: 7,
    80: 4,
    189: 6,
    728: 6,
}
NOT_TRANSITIVE = 80
"""Points and lines of GQ(3, 3) differ: W(q) is its own dual for even q only."""


def intersection_array(topology: Topology) -> tuple[list[int], list[int]]:
    """By the definition: for all u, v at distance i, the neighbours of v at distance i + 1 and i - 1 of u."""
    count = topology.node_count
    adjacent = np.zeros((count, count))  # floats multiply fast, and small whole numbers exactly
    np.add.at(adjacent, (topology.links.src, topology.links.dst), 1)
    assert adjacent.max() == 1
    assert np.array_equal(adjacent, adjacent.T)
    hops = np.full((count, count), -1)
    level, reached = 0, np.eye(count)
    while (hops < 0).any():
        hops[(hops < 0) & (reached > 0)] = level
        reached = np.minimum(reached @ adjacent + reached, 1)
        level += 1
    outward, inward = [], []
    for distance in range(level):
        outer = ((hops == distance + 1).astype(float) @ adjacent)[hops == distance]
        inner = ((hops == distance - 1).astype(float) @ adjacent)[hops == distance]
        assert len(set(outer.tolist())) == len(set(inner.tolist())) == 1, "not distance-regular"
        outward.append(int(outer[0]))
        inward.append(int(inner[0]))
    return outward[:-1], inward[1:]


@pytest.mark.parametrize("m", INTERSECTION_ARRAYS)
def test_intersection_array(m):
    topology = parse_topology(f"distreg:4,{m}")
    assert topology.compute_count == m
    assert intersection_array(topology) == INTERSECTION_ARRAYS[m]


@pytest.mark.parametrize("m", STEPS_OF_TABLE_8)
def test_bfb_reaches_table_8(m):
    spec = f"distreg:4,{m}"
    assert bfb_cost(spec)[0] == STEPS_OF_TABLE_8[m]
    assert is_bandwidth_optimal(spec)


@pytest.mark.parametrize("m", INTERSECTION_ARRAYS)
def test_symmetries(m):
    topology = parse_topology(f"distreg:4,{m}")
    assert all(is_automorphism(topology, symmetry) for symmetry in topology.automorphisms)
    assert automorphisms_are_transitive(topology) == (m != NOT_TRANSITIVE)


def test_points_and_lines_of_the_quadrangle_are_two_orbits():
    """What is collinear with all that is collinear with two others: four points for points, two lines for lines."""
    orbit = checked_orbits(parse_topology("distreg:4,80"))
    assert len(set(orbit[:40])) == len(set(orbit[40:])) == 1
    assert orbit[0] != orbit[40]
    adjacent = nx.to_numpy_array(nx.Graph(graph_of(parse_topology("distreg:4,80"))), nodelist=range(80))
    meets = adjacent @ adjacent > 0
    spans = []
    for one in (0, 40):
        other = next(node for node in range(one, one + 40) if not meets[one, node])
        spans.append(int(meets[:, meets[one] & meets[other]].all(axis=1).sum()))
    assert spans == [4, 2]


@pytest.mark.parametrize(
    ("m", "graph"),
    [
        (6, nx.octahedral_graph()),
        (9, nx.cartesian_product(nx.complete_graph(3), nx.complete_graph(3))),
        (15, nx.line_graph(nx.petersen_graph())),
        (16, nx.hypercube_graph(4)),
        (21, nx.line_graph(nx.heawood_graph())),
        (35, nx.kneser_graph(7, 3)),
        (45, nx.line_graph(nx.LCF_graph(30, [-13, -9, 7, -7, 9, 13], 5))),
    ],
)
def test_well_known_graphs(m, graph):
    assert nx.is_isomorphic(nx.Graph(graph_of(parse_topology(f"distreg:4,{m}"))), graph)


def test_sixteen_nodes_are_the_hypercube_in_its_own_numbering():
    assert links_of(parse_topology("distreg:4,16")) == links_of(parse_topology("hypercube:4"))
