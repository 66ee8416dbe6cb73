"""Degree expansion against its definition."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism
from chorale.synth.topology.expansions import degree_expansion
from chorale.synth.topology.spec import parse_topology
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies


@given(strongly_connected_topologies(max_nodes=5, max_extra_links=6, bandwidths=MIXED), st.integers(1, 3))
def test_definition(topology, copies):
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
def test_symmetries(spec, copies):
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
