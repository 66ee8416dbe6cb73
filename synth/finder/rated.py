"""Candidates of the finder by the rate of an all-to-all, alone or together with the costs of an allreduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Literal

from chorale.synth.executor.base import Executor, Progress
from chorale.synth.finder.candidate import TopologyCandidate, cost_of
from chorale.synth.methods.alltoall.alltoall import alltoall_rate
from chorale.synth.methods.alltoall.rate import AllToAllRate
from chorale.synth.topology.spec import parse_topology

Goal = Literal["allreduce", "alltoall", "both"]

MAX_NODES_BY_RATE = 1024
"""Up to so many nodes a goal may be the rate of an all-to-all: larger networks take minutes each."""
_ROWS = 5


def greatest_rate(nodes: int, degree: int, bidirectional: bool) -> Fraction:
    """Return what no network exceeds: a node must send over as many links as its distances add up to.

    Distances are at least those of the Moore bound; the unit is a link. nodes >= 2, degree >= 1.
    """
    left, ring, hops, distances = nodes - 1, degree, 1, 0
    while left > 0:
        distances += hops * min(ring, left)
        left, hops = left - ring, hops + 1
        ring *= max(degree - 1 if bidirectional else degree, 1)
    return Fraction(degree, distances)


def rates_of(specs: Sequence[str], executor: Executor, progress: Progress | None) -> dict[str, AllToAllRate]:
    """Return the certified bounds on the all-to-all rate of each of `specs`, one topology per task."""
    known = list(dict.fromkeys(specs))
    return dict(zip(known, executor.map(_rate, known, None, progress), strict=True))


def _rate(_shared: None, spec: str) -> AllToAllRate:
    return alltoall_rate(parse_topology(spec))


def rated_frontier(
    candidates: Sequence[TopologyCandidate], rates: Mapping[str, AllToAllRate], goal: Goal
) -> list[tuple[TopologyCandidate, ...]]:
    """Return the best candidates by falling rate that flows reach, equals together, the simplest first.

    alltoall: the few best; both: those that no other beats in rate, steps and bandwidth time at once. Costs are exact.
    """

    def order(candidate: TopologyCandidate) -> tuple[Fraction, int, Fraction]:
        return -rates[candidate.spec].lower, *cost_of(candidate)

    ordered = sorted(candidates, key=lambda one: (order(one), one.tie_break))
    groups = [tuple(group) for _, group in groupby(ordered, key=order)]
    if goal == "alltoall":
        return groups[:_ROWS]
    costs = [order(group[0]) for group in groups]
    return [
        group
        for group, cost in zip(groups, costs, strict=True)
        if not any(other != cost and all(other[i] <= cost[i] for i in range(len(cost))) for other in costs)
    ]
