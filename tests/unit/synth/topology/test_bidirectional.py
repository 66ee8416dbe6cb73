"""A network with its transpose."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given

from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.expansions import bidirectional
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import transpose
from tests.bfb_cost import bfb_cost
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies


@given(strongly_connected_topologies(bandwidths=MIXED, switches=2))
def test_definition(topology):
    there = [tuple(link) for link in topology.links]
    back = [(link.dst, link.src, *link[2:]) for link in topology.links]
    both = bidirectional(topology, "bidirectional(random)")
    assert Counter(map(tuple, both.links)) == Counter(there + back)
    assert transpose(both).id == both.id
    assert both.node_ids == topology.node_ids


@given(regular_topologies())
def test_degree_doubles_and_symmetries_stay(spec):
    inner, both = parse_topology(spec), parse_topology(f"bidirectional({spec})")
    assert inner.degree is not None
    assert both.degree == 2 * inner.degree
    assert both.automorphisms
    assert all(is_automorphism(both, symmetry) for symmetry in both.automorphisms)


def test_one_way_ring_becomes_the_ring():
    assert parse_topology("bidirectional(uniring:1,7)").id == parse_topology("ring:7").id
    assert parse_topology("bidirectional(uniring:2,7)").id == parse_topology("biring:4,7").id


@pytest.mark.parametrize("spec", ["kautz:2,2", "base:d3", "line(bipartite:2)", "dicirculant:2"])
def test_bfb_takes_no_more_steps_than_on_the_one_way_network(spec):
    assert bfb_cost(f"bidirectional({spec})")[0] <= bfb_cost(spec)[0]


def test_bfb_may_take_more_time_than_the_two_halves_of_appendix_a6():
    """All nodes are neighbours now, one of them twice: shortest paths leave the second link idle."""
    assert bfb_cost("dicirculant:2") == (2, Fraction(3, 4))
    assert bfb_cost("bidirectional(dicirculant:2)") == (1, Fraction(1))
