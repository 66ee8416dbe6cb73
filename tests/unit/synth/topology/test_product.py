"""Cartesian products against coordinates and against families that are products."""

from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism
from chorale.synth.topology.distance import diameter
from chorale.synth.topology.expansions import cartesian_product
from chorale.synth.topology.spec import parse_topology
from tests.bfb_cost import bfb_cost, is_bandwidth_optimal
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies

small = strongly_connected_topologies(
    max_nodes=4, max_extra_links=4, bandwidths=MIXED, latencies_s=(MIXED[0], MIXED[3])
)


@given(st.lists(small, min_size=1, max_size=3))
def test_definition(factors):
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
def test_symmetries(specs):
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
        "product must be given networks of one bandwidth unit; got GB/s and link; convert the bandwidths"
    )
    assert parse_topology("power(file:x.json;2)", {"x.json": content}.__getitem__).bandwidth_unit == "GB/s"


def test_switches_are_refused():
    with pytest.raises(InvalidInput, match="power must be given a network without switches"):
        parse_topology("power(hxmesh:2,2x2;2)")
