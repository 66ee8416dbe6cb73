"""Candidates of the finder: lower bounds for a size and degree, costs, the Pareto frontier, and allreduce times."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Literal

from chorale.synth.errors import InvalidInput


def least_steps(nodes: int, degree: int, bidirectional: bool = False) -> int:
    """Return the smallest number of steps in which a node can hear from all others (Moore bound).

    Directed: at most degree^t nodes are t hops away. Bidirectional (every link has its reverse): at most
    degree (degree - 1)^(t - 1), because one link of every node on the way leads back. nodes >= 2, degree >= 1.
    """
    branches = degree - 1 if bidirectional else degree
    reached, ring, steps = 1, degree, 0
    while reached < nodes:
        if ring == 0:
            rule = f"no bidirectional network of degree {degree} has {nodes} nodes"
            raise ValueError(rule)
        reached += ring
        ring *= branches
        steps += 1
    return steps


def least_bandwidth_factor(nodes: int) -> Fraction:
    """Return (N - 1) / N: every node must receive N - 1 shards of M / N bytes through links of bandwidth B in all."""
    return Fraction(nodes - 1, nodes)


ScheduleMethod = Literal["bfb", "expand"]
"""bfb: breadth-first broadcast on the topology; expand: the base's own schedule, expanded with the topology."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What expansions need to know of a topology.

    simple:            neither parallel links nor self-loops
    self_loops:        some node has a link to itself
    bidirectional:     every link has its reverse
    reverse_symmetric: known to equal its transpose up to names (False: not known)
    """

    simple: bool
    self_loops: bool
    bidirectional: bool
    reverse_symmetric: bool


@dataclass(frozen=True, slots=True)
class TopologyCandidate:
    """Topology `spec` of `nodes` and `degree`, allgather by `method` in `steps` at T_B = `bandwidth_factor` M / B.

    exact:       whether steps and factor are those of a real schedule; else they are predicted by a rule
    least_steps, least_factor: what the real schedule cannot beat, where the prediction may be too high
    expansions:  how many functions of topologies the spec is deep, for taste between equals
    origin:      the bases that it is made of
    """

    spec: str
    method: ScheduleMethod
    nodes: int
    degree: int
    steps: int
    bandwidth_factor: Fraction
    exact: bool
    traits: Traits
    least_steps: int
    least_factor: Fraction
    expansions: int = 0
    origin: tuple[str, ...] = ()

    @property
    def is_bandwidth_optimal(self) -> bool:
        return self.bandwidth_factor == least_bandwidth_factor(self.nodes)

    @property
    def tie_break(self) -> tuple[int, int, str]:
        """Order between candidates of equal cost: fewer expansions, shorter spec."""
        return self.expansions, len(self.spec), self.spec


Cost = tuple[int, Fraction]


def cost_of(candidate: TopologyCandidate) -> Cost:
    """Return (steps, bandwidth factor)."""
    return candidate.steps, candidate.bandwidth_factor


def frontier(candidates: Iterable[TopologyCandidate]) -> list[tuple[TopologyCandidate, ...]]:
    """Return the Pareto-efficient candidates by rising steps; equals together, by `tie_break`. O(n log n)."""
    ordered = sorted(candidates, key=lambda candidate: (cost_of(candidate), candidate.tie_break))
    groups: list[tuple[TopologyCandidate, ...]] = []
    for (_, factor), group in groupby(ordered, key=cost_of):
        if not groups or factor < groups[-1][0].bandwidth_factor:
            groups.append(tuple(group))
    return groups


def promising(candidates: Iterable[TopologyCandidate]) -> list[TopologyCandidate]:
    """Return the candidates whose lowest possible cost no other candidate is expected to beat.

    Candidates of equal cost all stay. O(n * frontier).
    """
    everyone = list(candidates)
    best = [cost_of(group[0]) for group in frontier(everyone)]
    return [candidate for candidate in everyone if not any(_beats(cost, candidate) for cost in best)]


def _beats(cost: Cost, candidate: TopologyCandidate) -> bool:
    steps, factor = candidate.least_steps, candidate.least_factor
    return cost != (steps, factor) and cost[0] <= steps and cost[1] <= factor


@dataclass(frozen=True, slots=True)
class Workload:
    """Allreduce of `size_bytes`, `alpha_us` microseconds for a step, `bandwidth_gbps` Gbit/s out of a whole node."""

    alpha_us: Fraction
    size_bytes: int
    bandwidth_gbps: Fraction

    def __post_init__(self) -> None:
        if self.alpha_us < 0:
            raise InvalidInput("the time of a step must not be negative", self.alpha_us, "give microseconds, 0 or more")
        if self.size_bytes < 1:
            raise InvalidInput("a size must be at least one byte", self.size_bytes, "give the bytes of the vector")
        if self.bandwidth_gbps <= 0:
            raise InvalidInput("a bandwidth must be positive", self.bandwidth_gbps, "give Gbit/s of a whole node")

    def time_us(self, candidate: TopologyCandidate) -> Fraction:
        """Return 2 (T_L alpha + T_B): a reduce_scatter and an allgather of equal cost."""
        per_factor_us = Fraction(8 * self.size_bytes, 1000) / self.bandwidth_gbps
        return 2 * (candidate.steps * self.alpha_us + candidate.bandwidth_factor * per_factor_us)

    def best(self, candidates: Iterable[TopologyCandidate]) -> TopologyCandidate:
        """Return the fastest of `candidates`, the one with fewer steps of equals."""
        return min(candidates, key=lambda candidate: (self.time_us(candidate), candidate.steps))
