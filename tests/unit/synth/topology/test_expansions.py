"""Expansions of networks against their definitions and NetworkX."""

import dataclasses
from collections import Counter
from fractions import Fraction
from itertools import product

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology import expansions
from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose, transpose_with_links
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal
from tests.links import graph_of, links_of
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies


@st.composite
def with_self_loops(draw: st.DrawFn) -> Topology:
    topology = draw(strongly_connected_topologies(max_nodes=5, max_extra_links=6))
    loops = draw(st.lists(st.integers(0, topology.node_count - 1), max_size=3))
    links = Links.build([*topology.links, *(Link(node, node) for node in loops)])
    return dataclasses.replace(topology, links=links)


@given(with_self_loops())
def test_definition_of_line(topology):
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


@given(strongly_connected_topologies(max_nodes=5, max_extra_links=6, bandwidths=MIXED), st.integers(1, 3))
def test_definition_of_degree(topology, copies):
    expanded = degree_expansion(topology, copies, "degree(random)")
    expected = Counter(
        (link.src * copies + i, link.dst * copies + j, link.bandwidth)
        for link in topology.links
        for i in range(copies)
        for j in range(copies)
    )
    assert Counter((link.src, link.dst, link.bandwidth) for link in expanded.links) == expected
    assert list(expanded.links) == sorted(expanded.links, key=lambda link: (link.dst, link.src, -link.bandwidth))


@given(regular_topologies(), st.integers(1, 3))
def test_symmetries_of_degree(spec, copies):
    expanded = parse_topology(f"degree({spec};{copies})")
    assert all(is_automorphism(expanded, symmetry) for symmetry in expanded.automorphisms)
    assert automorphisms_are_transitive(expanded)


def test_well_known_results():
    assert parse_topology("degree(complete:2;4)").id == parse_topology("bipartite:4").id
    assert parse_topology("degree(complete:3;1)").id == parse_topology("complete:3").id
    octahedron = parse_topology("degree(complete:3;2)")
    assert (octahedron.compute_count, octahedron.degree) == (6, 4)


@pytest.mark.parametrize(
    ("spec", "steps"), [("degree(complete:3;2)", 2), ("degree(biring:2,5;2)", 2), ("degree(complete:2;4)", 2)]
)
def test_bfb_is_optimal_on_table_5(spec, steps):
    assert bfb_cost(spec)[0] == steps
    assert is_bandwidth_optimal(spec)


small = strongly_connected_topologies(
    max_nodes=4, max_extra_links=4, bandwidths=MIXED, latencies_s=(MIXED[0], MIXED[3])
)


@given(st.lists(small, min_size=1, max_size=3))
def test_definition_of_product(factors):
    """A link changes one coordinate, along a link of that factor."""
    sizes = [factor.node_count for factor in factors]
    expected = Counter()
    for place in product(*map(range, sizes)):
        for axis, factor in enumerate(factors):
            for link in factor.links:
                if link.src == place[axis]:
                    other = (*place[:axis], link.dst, *place[axis + 1 :])
                    ends = (int(np.ravel_multi_index(point, sizes)) for point in (place, other))
                    expected[(*ends, link.bandwidth, link.latency_s)] += 1
    expanded = cartesian_product(factors, "product(random)")
    assert Counter(map(tuple, expanded.links)) == expected
    order = sorted(expanded.links, key=lambda link: (link.dst, link.src, -link.bandwidth, link.latency_s))
    assert list(expanded.links) == order
    assert diameter(expanded) == sum(diameter(factor) for factor in factors)


@given(st.lists(regular_topologies(max_nodes=7), min_size=2, max_size=3))
def test_symmetries_of_product(specs):
    expanded = parse_topology(f"product({';'.join(specs)})")
    assert all(is_automorphism(expanded, symmetry) for symmetry in expanded.automorphisms)
    assert automorphisms_are_transitive(expanded)


@pytest.mark.parametrize(
    ("spec", "family"),
    [
        ("power(complete:2;4)", "hypercube:4"),
        ("product(ring:4;ring:5)", "torus:4x5"),
        ("product(ring:3;complete:2;ring:4)", "torus:3x2x4"),
        ("power(complete:3;2)", "hamming:2,3"),
        ("product(complete:3;complete:4)", "hyperx:3x4"),
        ("product(mesh:3;mesh:4)", "mesh:3x4"),
        ("power(ring:5;1)", "ring:5"),
        ("power(uniring:1,4;3)", "product(uniring:1,4;power(uniring:1,4;2))"),
    ],
)
def test_families_that_are_products(spec, family):
    assert parse_topology(spec).id == parse_topology(family).id


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("product(biring:2,8;power(uniring:1,4;2))", 10),
        ("product(power(uniring:1,4;3);uniring:1,8)", 16),
        ("power(product(uniring:1,4;uniring:1,8);2)", 20),
        ("power(distreg:4,6;2)", 4),
    ],
)
def test_bfb_is_optimal_on_products_of_optimal_simple_graphs(spec, steps):
    assert bfb_cost(spec)[0] == steps
    assert is_bandwidth_optimal(spec)


def test_units_must_agree():
    content = (
        b'{"format": "chorale-topology/1", "name": "x", "bandwidth_unit": "GB/s", "nodes": [{"id": "a", "kind": '
        b'"compute"}, {"id": "b", "kind": "compute"}], "links": [{"src": "a", "dst": "b", "bandwidth": 1, '
        b'"bidirectional": true}]}'
    )
    with pytest.raises(InvalidInput) as caught:
        parse_topology("product(ring:4;file:x.json)", {"x.json": content}.__getitem__)
    assert str(caught.value) == (
        "product needs networks with the same bandwidth unit, not GB/s and link; convert the bandwidths"
    )
    assert parse_topology("power(file:x.json;2)", {"x.json": content}.__getitem__).bandwidth_unit == "GB/s"


def test_switches_are_refused_of_product():
    with pytest.raises(InvalidInput, match="power must be given a network without switches"):
        parse_topology("power(hxmesh:2,2x2;2)")


@given(strongly_connected_topologies(bandwidths=MIXED, switches=2))
def test_definition_of_bidirectional(topology):
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


networks = strongly_connected_topologies(bandwidths=MIXED, latencies_s=MIXED[:2], switches=2)


@given(networks)
def test_every_link_is_turned_around(topology):
    turned, origin = transpose_with_links(topology)
    assert sorted(origin.tolist()) == list(range(len(topology.links)))
    for new, old in enumerate(origin):
        link, original = turned.links[new], topology.links[int(old)]
        assert (link.src, link.dst) == (original.dst, original.src)
        assert (link.bandwidth, link.latency_s) == (original.bandwidth, original.latency_s)
    assert turned.spec == f"transpose({topology.spec})"


@given(networks)
def test_twice_is_the_same_network(topology):
    turned, there = transpose_with_links(topology)
    again, back = transpose_with_links(turned)
    assert again.id == topology.id
    assert np.array_equal(there[back], np.arange(len(topology.links)))


@given(networks)
def test_links_stay_in_canonical_order(topology):
    links = list(transpose(topology).links)
    assert links == sorted(links, key=lambda link: (link.dst, link.src, -link.bandwidth, link.latency_s))


@given(regular_topologies())
def test_symmetries_stay_symmetries(spec):
    turned = parse_topology(f"transpose({spec})")
    assert turned.automorphisms
    assert all(is_automorphism(turned, generator) for generator in turned.automorphisms)
