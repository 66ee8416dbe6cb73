"""Renamed networks are recognised, others are not, and a renaming is always right."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import carries
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import isomorphism
from chorale.synth.topology.topology import Topology
from tests.properties import random_cases
from tests.strategies import MIXED, strongly_connected_topologies

SPECS = (
    "torus:4x4",
    "hypercube:4",
    "a100:2",
    "mi250:2",
    "fattree:4",
    "dragonfly:4,2,2",
    "distreg:4,45",
    "genkautz:2,9",
)
ANY = st.one_of(
    strongly_connected_topologies(2, 5, switches=1, bandwidths=MIXED[:2]), strongly_connected_topologies(2, 5)
)


def renamed(network: Topology, seed: int) -> tuple[Topology, np.ndarray]:
    """Return `network` under random names of nodes, and the new number of each."""
    rng, ranks = np.random.default_rng(seed), network.compute_count
    new_node = np.concatenate([rng.permutation(ranks), ranks + rng.permutation(network.switch_count)])
    links = [link._replace(src=int(new_node[link.src]), dst=int(new_node[link.dst])) for link in network.links]
    names = tuple(f"n{node}" for node in range(network.node_count))
    return Topology("renamed", names, ranks, Links.build(links), network.bandwidth_unit), new_node


def link_counts(network: Topology, new_node: list[int] | tuple[int, ...]) -> Counter[Link]:
    return Counter(link._replace(src=new_node[link.src], dst=new_node[link.dst]) for link in network.links)


def is_carried(source: Topology, target: Topology, new_node: tuple[int, ...]) -> bool:
    """The definition: the same kinds of nodes, and the links of `source` under new names are those of `target`."""
    kinds = all(
        (new_node[node] < target.compute_count) == (node < source.compute_count) for node in range(len(new_node))
    )
    return kinds and link_counts(source, new_node) == link_counts(target, tuple(range(target.node_count)))


@pytest.mark.parametrize("spec", SPECS)
def test_a_renamed_network_is_recognised(spec):
    network = parse_topology(spec)
    other, _ = renamed(network, 1)
    found = isomorphism(network, other)
    assert found is not None
    assert is_carried(network, other, tuple(found.tolist()))


@random_cases(150)
@given(ANY, ANY)
def test_every_answer_is_that_of_all_permutations(first, second):
    same = first.node_count == second.node_count and first.compute_count == second.compute_count
    expected = same and any(is_carried(first, second, new_node) for new_node in permutations(range(first.node_count)))
    found = isomorphism(first, second)
    assert (found is not None) == expected
    if expected:
        assert is_carried(first, second, tuple(found.tolist()))


@random_cases(100)
@given(ANY, st.integers(0, 2**31))
def test_a_renaming_is_carried_and_found(network, seed):
    other, new_node = renamed(network, seed)
    assert carries(network, other, new_node)
    assert isomorphism(network, other) is not None


def test_regular_networks_that_differ_are_told_apart():
    # Both are regular of degree 4 on 16 nodes, so that colours alone say nothing.
    first, second = parse_topology("torus:4x4"), parse_topology("circulant:16,1,2")
    assert isomorphism(first, second) is None


def test_the_search_gives_up_in_bounded_time():
    # Two strongly regular graphs of equal parameters: refinement is weakest on such pairs.
    def graph(offsets: set[tuple[int, int]]) -> Topology:
        cells = [(a, b) for a in range(4) for b in range(4)]
        links = [
            Link(i, j)
            for i, (a, b) in enumerate(cells)
            for j, (c, d) in enumerate(cells)
            if ((c - a) % 4, (d - b) % 4) in offsets
        ]
        return Topology("cells", tuple(map(str, range(16))), 16, Links.build(links))

    rook = graph({(0, 1), (0, 2), (0, 3), (1, 0), (2, 0), (3, 0)})
    shrikhande = graph({(0, 1), (0, 3), (1, 0), (3, 0), (1, 1), (3, 3)})
    assert isomorphism(rook, shrikhande) is None
