"""Line graphs against their definition and NetworkX."""

import dataclasses
from collections import Counter
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology import expansions
from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.expansions import line_graph
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.bfb_cost import bfb_cost
from tests.links import graph_of, links_of
from tests.strategies import regular_topologies, strongly_connected_topologies


@st.composite
def with_self_loops(draw: st.DrawFn) -> Topology:
    topology = draw(strongly_connected_topologies(max_nodes=5, max_extra_links=6))
    loops = draw(st.lists(st.integers(0, topology.node_count - 1), max_size=3))
    links = Links.build([*topology.links, *(Link(node, node) for node in loops)])
    return dataclasses.replace(topology, links=links)


@given(with_self_loops())
def test_definition(topology):
    """Nodes by (source, target, parallel index); a link wherever one link ends and another begins."""
    arcs = sorted(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    expected = Counter(
        (first, second)
        for first, (_, middle) in enumerate(arcs)
        for second, (start, _) in enumerate(arcs)
        if middle == start
    )
    expanded = line_graph(topology, "line(random)")
    assert links_of(expanded) == expected
    assert expanded.node_count == len(arcs)
    assert list(expanded.links) == sorted(expanded.links, key=lambda link: (link.dst, link.src))


@given(regular_topologies())
def test_regular_networks_keep_their_degree(spec):
    inner, expanded = parse_topology(spec), parse_topology(f"line({spec})")
    assert inner.degree is not None
    assert expanded.degree == inner.degree
    assert expanded.compute_count == inner.degree * inner.compute_count
    assert diameter(expanded) == diameter(inner) + 1 or inner.degree == 1
    assert len(expanded.automorphisms) == len(inner.automorphisms)
    assert all(is_automorphism(expanded, symmetry) for symmetry in expanded.automorphisms)


@pytest.mark.parametrize("spec", ["kautz:2,2", "torus:3x3", "distreg:4,15"])
def test_against_networkx(spec):
    expected = nx.line_graph(nx.DiGraph(graph_of(parse_topology(spec))))
    assert nx.is_isomorphic(nx.DiGraph(graph_of(parse_topology(f"line({spec})"))), expected)


def test_a_self_loop_is_a_link():
    expanded = parse_topology("line(debruijn:2,2)")
    assert expanded.id == parse_topology("debruijn:2,3").id
    assert np.count_nonzero(expanded.links.src == expanded.links.dst) == 2


def test_repetition_is_nesting():
    assert parse_topology("line(bipartite:2;3)").id == parse_topology("line(line(line(bipartite:2)))").id
    assert parse_topology("line(bipartite:2)").id == parse_topology("line(bipartite:2;1)").id


def test_equal_links_keep_their_bandwidth():
    halved = parse_topology("line(scaled(uniring:1,3;link=0-1;link=1-2;link=2-0;factor=1/2))")
    assert halved.links.bandwidths == (Fraction(1, 2),)


@pytest.mark.parametrize(
    ("spec", "steps", "factor"),
    [
        ("line(bipartite:4)", 3, "1"),
        ("line(bipartite:4;2)", 4, "33/32"),
        ("line(bipartite:4;3)", 5, "133/128"),
        ("line(distreg:4,32)", 5, "1"),
        ("line(distreg:4,32;2)", 6, "129/128"),
        ("line(circulant:16,3,4;3)", 6, "261/256"),
        ("line(product(power(uniring:1,4;3);uniring:1,2))", 11, "1"),
        ("line(base:d3)", 4, "15/16"),
        ("line(base:d3;2)", 5, "31/32"),
        ("line(base:cayley-128-4)", 5, "511/512"),
        ("line(base:cayley-256-4)", 6, "1023/1024"),
    ],
)
def test_known_costs_of_bfb(spec, steps, factor):
    found_steps, found_factor = bfb_cost(spec)
    assert (found_steps, str(found_factor)) == (steps, factor)


def test_unbalanced_networks_are_counted_before_they_are_expanded(monkeypatch):
    """All links into one node and all out of it: the line graph has more links than the average says."""
    monkeypatch.setattr(expansions, "require_size", refuse_more_than_50_links)
    hub = Links.build([Link(u, 0) for u in range(1, 8)] + [Link(0, u) for u in range(1, 8)])
    star = Topology("star", tuple(map(str, range(8))), 8, hub)
    with pytest.raises(InvalidInput, match="56 links"):
        line_graph(star, "line(star)")


def refuse_more_than_50_links(spec: str, nodes: int, links: int) -> None:
    if links > 50:
        raise InvalidInput("at most 50 links", f"{spec} of {nodes} nodes, {links} links", "choose another")
