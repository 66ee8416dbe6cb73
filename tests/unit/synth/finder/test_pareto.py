"""Frontiers against comparison of all pairs."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.finder.candidate import TopologyCandidate, Traits, cost_of, frontier, promising

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
