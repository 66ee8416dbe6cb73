"""Symmetries: the check against its definition, vertex-transitivity against brute force."""

import dataclasses
import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.symmetry_search import is_vertex_transitive
from chorale.synth.topology.topology import Topology, transpose
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies


def keeps_links(topology: Topology, image: tuple[int, ...]) -> bool:
    """The definition: the multiset of links is the same after renaming."""
    links = [(link.src, link.dst, link.bandwidth, link.latency_s) for link in topology.links]
    renamed = [(image[src], image[dst], bandwidth, latency) for src, dst, bandwidth, latency in links]
    return Counter(links) == Counter(renamed)


def transitive_by_brute_force(topology: Topology) -> bool:
    compute, switches = range(topology.compute_count), range(topology.compute_count, topology.node_count)
    images = (
        first + second for first in itertools.permutations(compute) for second in itertools.permutations(switches)
    )
    return {image[0] for image in images if keeps_links(topology, image)} == set(compute)


small = strongly_connected_topologies(max_nodes=4, max_extra_links=6, bandwidths=MIXED[:2], switches=2)


@given(small, st.data())
def test_is_automorphism(topology, data):
    image = tuple(data.draw(st.permutations(range(topology.node_count))))
    mixes_kinds = any(image[node] >= topology.compute_count for node in range(topology.compute_count))
    assert is_automorphism(topology, np.array(image)) == (keeps_links(topology, image) and not mixes_kinds)


@pytest.mark.parametrize("wrong", [[0, 0, 1], [0, 1], [0, 1, 3], [[0, 1, 2]]])
def test_what_is_no_permutation_is_no_automorphism(wrong):
    assert not is_automorphism(parse_topology("complete:3"), np.array(wrong))


@given(small)
def test_vertex_transitivity_of_random_networks(topology):
    assert is_vertex_transitive(topology) == transitive_by_brute_force(topology)


@given(regular_topologies())
def test_families_are_vertex_transitive_without_being_told(spec):
    topology = parse_topology(spec)
    assert is_vertex_transitive(topology) is True
    assert is_vertex_transitive(dataclasses.replace(topology, automorphisms=())) is True
    assert is_vertex_transitive(transpose(topology)) is True


@pytest.mark.parametrize("spec", ["mesh:3x3", "mesh:128x128", "without(torus:4x4;link=0-1)"])
def test_what_is_not(spec):
    assert is_vertex_transitive(parse_topology(spec)) is False


def test_equal_degrees_and_other_distances():
    """A twisted pair of squares: every node has three links, distances differ."""
    wheel = parse_topology("without(circulant:8,1,4;link=0-4;link=1-5)")
    assert is_vertex_transitive(wheel) is False


def test_large_networks_are_searched():
    untold = dataclasses.replace(parse_topology("torus:9x9"), automorphisms=())
    assert is_vertex_transitive(untold) is True
    assert is_vertex_transitive(untold, tries=0) is True


def test_fabrics_with_switches_are_searched():
    assert is_vertex_transitive(dataclasses.replace(parse_topology("a100:8"), automorphisms=())) is True
    assert is_vertex_transitive(dataclasses.replace(parse_topology("mi250:2"), automorphisms=())) is False


def test_undecided_when_the_search_gives_up():
    """Points and lines of GQ(3, 3) look alike to links, and no symmetry takes one to the other."""
    quadrangle = parse_topology("distreg:4,80")
    assert is_vertex_transitive(quadrangle) is False
    assert is_vertex_transitive(quadrangle, tries=0) is None


def test_many_links_into_a_node():
    """More than are sorted by insertion; one link is faster, so its ends must stay where they are."""
    pairs = itertools.permutations(range(40), 2)
    links = Links.build(Link(*pair, Fraction(2 if pair == (3, 8) else 1)) for pair in pairs)
    topology = Topology("almost complete", tuple(map(str, range(40))), 40, links)
    order = np.random.default_rng(5).permutation(40)
    assert is_automorphism(parse_topology("complete:40"), order)
    assert not is_automorphism(topology, order)
    others = np.setdiff1d(np.arange(40), [3, 8])
    kept = np.arange(40)
    kept[others] = np.roll(others, 7)
    assert is_automorphism(topology, kept)
