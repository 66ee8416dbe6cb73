"""Frontiers against comparison of all pairs, and the Moore bound against trees that are grown node by node."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.finder.candidate import (
    TopologyCandidate,
    Traits,
    cost_of,
    frontier,
    least_bandwidth_factor,
    least_steps,
    promising,
)

TRAITS = Traits(simple=True, self_loops=False, bidirectional=False, reverse_symmetric=False)


@st.composite
def candidates(draw: st.DrawFn) -> list[TopologyCandidate]:
    costs = draw(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2), st.integers(0, 2))))
    return [
        TopologyCandidate(
            spec=f"ring:{index + 3}",
            method="bfb",
            nodes=9,
            degree=2,
            steps=steps,
            bandwidth_factor=Fraction(factor),
            exact=not (fewer or less),
            traits=TRAITS,
            least_steps=steps - fewer,
            least_factor=Fraction(factor) - Fraction(less, 2),
        )
        for index, (steps, factor, fewer, less) in enumerate(costs)
    ]


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
@pytest.mark.parametrize("degree", [2, 3, 4, 7])
def test_least_steps_are_the_depth_of_the_fullest_tree(degree, bidirectional):
    for nodes in range(2, 300):
        expected = depth_of_fullest_tree(nodes, degree, bidirectional)
        assert least_steps(nodes, degree, bidirectional) == expected


def test_known_moore_graphs_stand_at_the_bound():
    assert (least_steps(10, 3, True), least_steps(11, 3, True)) == (2, 3)  # Petersen
    assert (least_steps(50, 7, True), least_steps(51, 7, True)) == (2, 3)  # Hoffman-Singleton
    assert least_steps(2, 1, True) == 1


def test_degree_1_has_no_bidirectional_network_of_3_nodes():
    with pytest.raises(ValueError, match="degree 1"):
        least_steps(3, 1, True)


def test_bandwidth_bound():
    assert least_bandwidth_factor(8) == Fraction(7, 8)
