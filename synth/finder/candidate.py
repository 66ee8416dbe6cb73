"""Finder candidates: lower bounds for a node count and degree, costs, the Pareto frontier, and allreduce times."""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Literal

from chorale.synth.errors import InvalidInput


def least_steps(nodes: int, degree: int, bidirectional: bool = False) -> int:
    """Return the smallest number of steps in which a node can receive data from all others (Moore bound).

    At most degree^t nodes are t hops away. In a bidirectional network (every link has a reverse link), the limit is
    degree (degree - 1)^(t - 1), because one of each intermediate node's links leads back.

    Raises:
        ValueError: if a bidirectional network of this degree cannot reach that many nodes.
    """
    branches = degree - 1 if bidirectional else degree
    reached, ring, steps = 1, degree, 0
    while reached < nodes:
        if ring == 0:
            raise ValueError(f"no bidirectional network of degree {degree} has {nodes} nodes")
        reached += ring
        ring *= branches
        steps += 1
    return steps


def least_bandwidth_factor(nodes: int) -> Fraction:
    """Return (N - 1) / N, because each node receives N - 1 shards of M / N bytes over links with total bandwidth B."""
    return Fraction(nodes - 1, nodes)


def greatest_rate(nodes: int, degree: int, bidirectional: bool = False) -> Fraction:
    """Return an upper bound on the all-to-all rate of every network of this size, in units of one link's bandwidth.

    Each unit of data uses one link per hop, and the Moore bound gives the minimum total number of hops.
    """
    left, ring, hops, distances = nodes - 1, degree, 1, 0
    while left > 0:
        distances += hops * min(ring, left)
        left, hops = left - ring, hops + 1
        ring *= max(degree - 1 if bidirectional else degree, 1)
    return Fraction(degree, distances)


ScheduleMethod = Literal["bfb", "expand"]
"""bfb: breadth-first broadcast on the topology. expand: the base's stored schedule, expanded like the topology."""


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a topology that decide which expansions can be applied to it.

    simple:            whether there are neither parallel links nor self-loops
    self_loops:        whether some node has a link to itself
    bidirectional:     whether every link has a reverse link
    reverse_symmetric: whether the topology is known to be isomorphic to its transpose (False: not known)
    """

    simple: bool
    self_loops: bool
    bidirectional: bool
    reverse_symmetric: bool


Cost = tuple[int, Fraction]
"""(steps, bandwidth factor) of an allgather; the bandwidth factor is T_B in units of M / B."""


@dataclass(frozen=True, slots=True)
class TopologyCandidate:
    """A topology and the cost of an allgather on it.

    spec, nodes, degree: the topology
    method:      method that makes the schedule
    steps, bandwidth_factor: T_L, and T_B in units of M / B
    exact:       whether a schedule with this cost is known to exist; otherwise the cost is only predicted
    least_steps, least_factor: lower bounds on the real cost, which may be lower than predicted
    expansions:  nesting depth of functions in the spec; among candidates of equal cost, lower is preferred
    origin:      the bases from which the topology is constructed
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
        """Sort key for candidates of equal cost: fewer expansions first, then shorter specs."""
        return self.expansions, len(self.spec), self.spec


def base_candidate(
    spec: str, nodes: int, degree: int, cost: Cost, traits: Traits, method: ScheduleMethod = "bfb"
) -> TopologyCandidate:
    """Return a candidate for a base topology with known exact `cost`."""
    return TopologyCandidate(spec, method, nodes, degree, *cost, True, traits, *cost, origin=(spec,))


def cost_of(candidate: TopologyCandidate) -> Cost:
    """Return the candidate's (steps, bandwidth factor)."""
    return candidate.steps, candidate.bandwidth_factor


def frontier(candidates: Iterable[TopologyCandidate]) -> list[tuple[TopologyCandidate, ...]]:
    """Return the Pareto-optimal candidates, grouped by cost and sorted by steps. Groups are sorted by `tie_break`."""
    ordered = sorted(candidates, key=lambda candidate: (cost_of(candidate), candidate.tie_break))
    groups: list[tuple[TopologyCandidate, ...]] = []
    for (_, factor), group in groupby(ordered, key=cost_of):
        if not groups or factor < groups[-1][0].bandwidth_factor:
            groups.append(tuple(group))
    return groups


def promising(candidates: Iterable[TopologyCandidate]) -> list[TopologyCandidate]:
    """Remove candidates that cannot be Pareto-optimal even if they cost only their lower bounds. O(n * frontier).

    A candidate is removed if another candidate's expected cost is better than its lower bounds. All candidates of equal
    cost are kept.
    """
    everyone = list(candidates)
    best = [cost_of(group[0]) for group in frontier(everyone)]

    def is_beaten(lowest: Cost) -> bool:
        return any(cost != lowest and cost[0] <= lowest[0] and cost[1] <= lowest[1] for cost in best)

    return [candidate for candidate in everyone if not is_beaten((candidate.least_steps, candidate.least_factor))]


@dataclass(frozen=True, slots=True)
class Workload:
    """An allreduce of `size_bytes`, with `alpha_us` microseconds per step and `bandwidth_gbps` Gbit/s per node."""

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

    def us_of(self, steps: int, bandwidth_factor: Fraction) -> Fraction:
        """Return 2 (T_L alpha + T_B) in microseconds: the time of a reduce-scatter and an allgather of this cost."""
        per_factor_us = Fraction(8 * self.size_bytes, 1000) / self.bandwidth_gbps
        return 2 * (steps * self.alpha_us + bandwidth_factor * per_factor_us)

    def time_us(self, candidate: TopologyCandidate) -> Fraction:
        """Return the allreduce's time on `candidate`, in microseconds."""
        return self.us_of(*cost_of(candidate))

    def best(self, candidates: Iterable[TopologyCandidate]) -> TopologyCandidate:
        """Return the fastest of `candidates`; if several are equally fast, the one with the fewest steps."""
        return min(candidates, key=lambda candidate: (self.time_us(candidate), candidate.steps))
