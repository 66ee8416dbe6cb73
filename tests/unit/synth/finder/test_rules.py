"""Predictions of expansions against the built topology and its schedule."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.base_candidates import BaseSources, traits_of
from chorale.synth.finder.bfb_score import ScoreCache, bfb_score
from chorale.synth.finder.candidate import TopologyCandidate
from chorale.synth.finder.confirmation import confirm
from chorale.synth.finder.constructions import bidirectional_of, degree_of, line_of, power_of, product_of
from chorale.synth.topology.spec import parse_topology
from tests.properties import random_cases

SCORES = ScoreCache()
SMALL = [
    candidate
    for degree in (1, 2, 3, 4)
    for nodes in range(degree + 1, 13)
    for candidate in BaseSources(SCORES).all(nodes, degree)
]


def check(candidate: TopologyCandidate) -> None:
    topology = parse_topology(candidate.spec)
    assert (topology.compute_count, topology.degree) == (candidate.nodes, candidate.degree), candidate
    real, told = traits_of(topology), candidate.traits
    assert real.self_loops == told.self_loops
    assert real.simple or not told.simple
    assert real.bidirectional or not told.bidirectional
    if candidate.method == "bfb":
        score = bfb_score(topology)
        assert candidate.least_steps <= score.steps
        assert candidate.least_factor <= score.bandwidth_factor
        if not candidate.spec.startswith("bidirectional"):
            assert score.steps <= candidate.steps
    else:
        confirm(candidate, SerialExecutor())


@pytest.mark.parametrize("base", SMALL, ids=lambda candidate: f"{candidate.method} {candidate.spec}")
def test_one_expansion_of_every_small_base(base):
    if base.degree > 1:
        check(line_of(base))
    check(power_of(base, 2))
    if base.method == "bfb":
        check(bidirectional_of(base))
    if not base.traits.self_loops:
        check(degree_of(base, 2))
        check(degree_of(base, 3))


@st.composite
def towers(draw: st.DrawFn) -> TopologyCandidate:
    """Two or three expansions on top of each other, up to 300 nodes."""
    candidate = draw(st.sampled_from(SMALL))
    for _ in range(draw(st.integers(2, 3))):
        grown = [power_of(candidate, 2)] + [line_of(candidate)] * (candidate.degree > 1)
        grown += [] if candidate.traits.self_loops else [degree_of(candidate, 2)]
        fitting = [c for c in grown if c.nodes <= 300 and c.degree <= 16]
        if fitting:
            candidate = draw(st.sampled_from(fitting))
    return candidate


@random_cases(60)
@given(towers())
def test_towers_of_expansions(candidate):
    check(candidate)


@random_cases(40)
@given(st.data())
def test_products_of_optimal_parts_are_optimal_in_the_sum_of_steps(data):
    fit = [c for c in SMALL if c.traits.simple and c.method == "bfb" and c.is_bandwidth_optimal and c.degree <= 3]
    parts = data.draw(st.lists(st.sampled_from(fit), min_size=2, max_size=3))
    product = reduce(product_of, parts)
    if product.nodes <= 600:
        check(product)
        score = bfb_score(parse_topology(product.spec))
        assert (score.steps, score.bandwidth_factor) == (product.steps, product.bandwidth_factor)


def test_specs_stay_flat():
    ring = next(c for c in SMALL if c.spec == "ring:5")
    square = power_of(ring, 2)
    assert square.spec == "torus:5x5"
    assert power_of(square, 2).spec == "torus:5x5x5x5"
    assert product_of(square, ring).spec == "torus:5x5x5"
    assert line_of(line_of(line_of(ring))).spec == "line(ring:5;3)"
    one_way = next(c for c in SMALL if c.spec == "uniring:1,4")
    assert power_of(power_of(one_way, 2), 2).spec == "power(uniring:1,4;4)"
    assert product_of(product_of(one_way, ring), one_way).spec == "product(uniring:1,4;ring:5;uniring:1,4)"


def test_line_graphs_of_generalized_kautz_graphs_are_such():
    """The reason why they are not tried."""
    for degree, nodes in ((2, 7), (3, 11), (4, 6)):
        line, larger = parse_topology(f"line(genkautz:{degree},{nodes})"), f"genkautz:{degree},{degree * nodes}"
        assert bfb_score(line) == bfb_score(parse_topology(larger))
