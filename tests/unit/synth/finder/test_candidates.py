"""Bases, expansions, scores and frontiers: every candidate costs, and is, what the finder believes of it."""

from dataclasses import replace
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.experiments.framework.experiment import synthesized
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.finder.candidate import (
    ScoreCache,
    TopologyCandidate,
    bfb_score,
    cost_of,
    frontier,
    least_steps,
    promising,
)
from chorale.synth.finder.constructions import (
    DISTANCE_REGULAR_STEPS,
    BaseSources,
    database_entries,
    degree_of,
    line_of,
    optimal_families,
    power_of,
    product_of,
    scored_families,
    traits_of,
)
from chorale.synth.finder.find import confirm
from chorale.synth.kernels import native
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Links, Topology
from tests.properties import random_cases


def check_base(candidate) -> None:
    topology = parse_topology(candidate.spec)
    assert (topology.compute_count, topology.degree) == (candidate.nodes, candidate.degree), candidate
    assert replace(traits_of(topology), reverse_symmetric=candidate.traits.reverse_symmetric) == candidate.traits
    if candidate.method == "bfb":
        score = bfb_score(topology)
        assert (score.steps, score.bandwidth_factor) == (candidate.steps, candidate.bandwidth_factor), candidate
    assert (candidate.least_steps, candidate.least_factor) == (candidate.steps, candidate.bandwidth_factor)


@pytest.mark.parametrize("degree", [1, 2, 4, 8])
def test_families_keep_their_promise(degree):
    seen = set()
    for nodes in (*range(max(2, degree + 1), 66), *(nodes for nodes in DISTANCE_REGULAR_STEPS if nodes > 65)):
        for candidate in optimal_families(nodes, degree):
            family = candidate.spec.partition(":")[0]
            if nodes < 66 or family == "distreg":
                check_base(candidate)
            seen.add(family)
    assert "uniring" in seen
    expected = {1: {"complete"}, 2: {"ring", "hypercube"}, 4: {"circulant", "distreg", "hamming", "twisted-torus"}}
    assert expected.get(degree, set()) <= seen


@pytest.mark.parametrize("degree", [2, 4, 5])
def test_scored_families(degree):
    scores = ScoreCache()
    for nodes in range(degree + 1, 40):
        for candidate in scored_families(nodes, degree, scores, bidirectional=False):
            check_base(candidate)


def test_a_bidirectional_network_exists_wherever_it_can():
    sources = BaseSources(ScoreCache(), bidirectional=True)
    for degree in range(2, 9):
        for nodes in range(degree + 1, 60):
            if nodes * degree % 2 == 0:
                found = list(sources.all(nodes, degree))
                assert found, (nodes, degree)
                assert all(candidate.traits.bidirectional for candidate in found)


def test_database_entries_of_both_kinds():
    methods = {(c.spec, c.method): c for c in database_entries(8, 2, ScoreCache(), paper_only=False)}
    assert (methods["diamond", "expand"].steps, methods["diamond", "expand"].bandwidth_factor) == (3, Fraction(7, 8))
    assert methods["diamond", "bfb"].bandwidth_factor == 1
    assert ("base:d3", "bfb") in methods
    plain = {c.spec for c in database_entries(8, 2, ScoreCache(), paper_only=True)}
    assert plain == {"diamond", "dbjmod:2,3"}


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


def check_score(topology: Topology) -> None:
    score, cost = bfb_score(topology), synthesized("bfb", topology).cost
    assert (score.steps, score.bandwidth_factor) == (cost.steps, cost.bandwidth_factor)


@pytest.mark.parametrize(
    "spec", ["complete:2", "debruijn:2,4", "genkautz:4,23", "circulant:60,1,2,3,4,5", "uniring:1,40"]
)
def test_score_is_the_cost_of_the_schedule(spec):
    check_score(parse_topology(spec))


@st.composite
def regular_digraphs(draw: st.DrawFn) -> Topology:
    """Unions of permutations, the first a cycle through all nodes: self-loops and parallel links may occur."""
    nodes, degree = draw(st.integers(3, 12)), draw(st.integers(1, 4))
    cycle = draw(st.permutations(range(nodes)))
    images = [np.array(cycle)[(np.argsort(cycle) + 1) % nodes]]
    images += [np.array(draw(st.permutations(range(nodes)))) for _ in range(degree - 1)]
    links = Links.of_unit_capacity(np.tile(np.arange(nodes), degree), np.concatenate(images))
    return Topology("random", tuple(map(str, range(nodes))), nodes, links)


@given(regular_digraphs())
def test_random_networks_score_as_their_schedules_cost(topology):
    check_score(topology)


def test_a_high_diameter_is_told_by_no_loads():
    tails = ((np.arange(40) - 1) % 40).astype(np.int32)[:, None]
    top, bottom = native.loads_of_low_diameter(tails, np.array([0]), 38)
    assert len(top) == len(bottom) == 0
    assert native.loads_of_low_diameter(tails, np.array([0]), 39)[0].tolist() == [1] * 39


def test_scores_are_computed_once_and_irregular_and_unequal_networks_have_none():
    specs = [f"ring:{nodes}" for nodes in range(3, 150)]
    scores = ScoreCache()
    scores.compute(specs + specs[:5], SerialExecutor())
    assert all(scores.of(f"ring:{nodes}").steps == nodes // 2 for nodes in range(3, 150))
    assert len(scores) == len(specs)
    for spec in ("mesh:3x3", "scaled(ring:5;link=0-1;factor=1/2)", "dbt:8"):
        with pytest.raises(InvalidInput, match="regular"):
            bfb_score(parse_topology(spec))


@st.composite
def candidates(draw: st.DrawFn) -> list[TopologyCandidate]:
    numbers = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2), st.integers(0, 2))
    found = []
    for index, (steps, factor, fewer, less) in enumerate(draw(st.lists(numbers))):
        costs = {"steps": steps, "bandwidth_factor": Fraction(factor), "exact": not (fewer or less)}
        least = {"least_steps": steps - fewer, "least_factor": Fraction(2 * factor - less, 2)}
        found.append(replace(SMALL[0], spec=f"ring:{index + 3}", **costs, **least))
    return found


def dominates(first, second) -> bool:
    return first != second and first[0] <= second[0] and first[1] <= second[1]


@given(candidates())
def test_frontier_is_what_nobody_beats(everyone):
    efficient = [c for c in everyone if not any(dominates(cost_of(other), cost_of(c)) for other in everyone)]
    groups = frontier(everyone)
    assert sorted(c.spec for group in groups for c in group) == sorted(c.spec for c in efficient)
    assert [group[0].steps for group in groups] == sorted({c.steps for c in efficient})
    assert all(len({cost_of(c) for c in group}) == 1 for group in groups)
    assert all(list(group) == sorted(group, key=lambda c: c.tie_break) for group in groups)


@given(candidates())
def test_promising_are_those_that_could_still_be_efficient(everyone):
    kept = promising(everyone)
    for candidate in everyone:
        least = (candidate.least_steps, candidate.least_factor)
        assert (candidate in kept) == (not any(dominates(cost_of(other), least) for other in everyone))
    efficient = {c for group in frontier(everyone) for c in group}
    assert efficient <= set(kept)


def depth_of_fullest_tree(nodes: int, degree: int, bidirectional: bool) -> int:
    """Hang nodes below the root level by level, as many as links allow."""
    level, reached, depth = [degree], 1, 0
    while reached < nodes:
        assert level
        level = [degree - bidirectional for places in level for _ in range(places)]
        reached += len(level)
        depth += 1
    return depth


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("degree", [2, 7])
def test_least_steps_are_the_depth_of_the_fullest_tree(degree, bidirectional):
    for nodes in range(2, 300):
        expected = depth_of_fullest_tree(nodes, degree, bidirectional)
        assert least_steps(nodes, degree, bidirectional) == expected
    assert least_steps(2, 1, True) == 1
    with pytest.raises(ValueError, match="degree 1"):
        least_steps(3, 1, True)
