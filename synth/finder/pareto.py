"""Which candidates are worth keeping: few steps against little bandwidth time."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from itertools import groupby

from chorale.synth.finder.candidate import TopologyCandidate

Cost = tuple[int, Fraction]


def cost_of(candidate: TopologyCandidate) -> Cost:
    """Return (steps, bandwidth factor)."""
    return candidate.steps, candidate.bandwidth_factor


def frontier(candidates: Iterable[TopologyCandidate]) -> list[tuple[TopologyCandidate, ...]]:
    """Return the Pareto-efficient candidates by rising steps; equals together, in order of taste. O(n log n)."""
    ordered = sorted(candidates, key=lambda candidate: (cost_of(candidate), candidate.tie_break))
    groups: list[tuple[TopologyCandidate, ...]] = []
    for (_, factor), group in groupby(ordered, key=cost_of):
        if not groups or factor < groups[-1][0].bandwidth_factor:
            groups.append(tuple(group))
    return groups


def promising(candidates: Iterable[TopologyCandidate]) -> list[TopologyCandidate]:
    """Return the candidates whose least imaginable cost no other candidate is expected to beat.

    Candidates of equal cost all stay. O(n * frontier).
    """
    everyone = list(candidates)
    best = [cost_of(group[0]) for group in frontier(everyone)]
    return [candidate for candidate in everyone if not any(_beats(cost, candidate) for cost in best)]


def _beats(cost: Cost, candidate: TopologyCandidate) -> bool:
    steps, factor = candidate.least_steps, candidate.least_factor
    return cost != (steps, factor) and cost[0] <= steps and cost[1] <= factor
