"""Describes the topologies that the finder compares, with their costs, lower bounds and allreduce times.

The cost of breadth-first broadcast (BFB) on a topology is computed exactly without making the schedule. For networks
with a small diameter and degree, kernels represent sets of nodes as bits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.kernels import native
from chorale.synth.methods.bfb.plan import network_of, network_of_nodes, problems_of
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, checked_orbits

ScheduleMethod = Literal["bfb", "expand"]
"""bfb: breadth-first broadcast. expand: the stored schedule of the base topology, expanded like the topology itself."""
_MOST_TASKS = 64
MAX_DEGREE = 8
"""Maximum degree that the kernels accept, because they try all 2^degree sets of a node's incoming links."""
_LOW_DIAMETER = 24
_FEW = 8
"""Orbits count as few if one node per orbit, with its in-neighbours, make up at most 1 / `_FEW` of all nodes."""
MAX_NODES_WITHOUT_SYMMETRIES = 2**14
"""Maximum node count unless symmetries leave few orbits (see `_FEW`), because the time is quadratic otherwise."""


def least_steps(nodes: int, degree: int, bidirectional: bool = False) -> int:
    """Return the smallest number of steps in which a node can receive data from all other nodes (Moore bound).

    At most degree^t nodes are t hops away. In a bidirectional network (every link has a reverse link), the limit is
    degree (degree - 1)^(t - 1), because one of each intermediate node's links leads back.

    Raises:
        ValueError: if no bidirectional network of this degree can have that many nodes.
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
    """Return the least possible T_B in units of M / B: (N - 1) / N, because each node must receive N - 1 shards."""
    return Fraction(nodes - 1, nodes)


def greatest_rate(nodes: int, degree: int, bidirectional: bool = False) -> Fraction:
    """Return an upper bound on the all-to-all rate of any network of this size, in units of one link's bandwidth.

    The bound holds because each unit of data uses one link per hop, and the Moore bound gives the minimum total number
    of hops.
    """
    left, ring, hops, distances = nodes - 1, degree, 1, 0
    while left > 0:
        distances += hops * min(ring, left)
        left, hops = left - ring, hops + 1
        ring *= max(degree - 1 if bidirectional else degree, 1)
    return Fraction(degree, distances)


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a topology that decide which expansions can be applied to it.

    simple:            whether there are neither parallel links nor self-loops
    self_loops:        whether some node has a link to itself
    bidirectional:     whether every link has a reverse link
    reverse_symmetric: whether the topology is known to be isomorphic to its transpose (False: unknown)
    """

    simple: bool
    self_loops: bool
    bidirectional: bool
    reverse_symmetric: bool


class AllgatherCost(NamedTuple):
    """Cost of an allgather: number of steps, and bandwidth time T_B in units of M / B (`bandwidth_factor`)."""

    steps: int
    bandwidth_factor: Fraction


@dataclass(frozen=True, slots=True)
class TopologyCandidate:
    """A topology that the finder may choose, and the cost of an allgather on it.

    spec, nodes, degree: the topology's spec, node count and degree
    traits:      properties of the topology that decide which expansions can be applied to it
    method:      method that makes the allgather's schedule
    steps, bandwidth_factor: number of steps (T_L), and bandwidth time T_B in units of M / B
    exact:       whether a schedule with this cost is known to exist; otherwise the cost is only predicted
    least_steps, least_factor: lower bounds on the real cost, which may be lower than predicted
    expansions:  number of nested expansions in the spec; among candidates of equal cost, fewer are preferred
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
        """Sort key for candidates of equal cost: prefers fewer expansions, and then shorter specs."""
        return self.expansions, len(self.spec), self.spec


def base_candidate(
    spec: str, nodes: int, degree: int, cost: AllgatherCost, traits: Traits, method: ScheduleMethod = "bfb"
) -> TopologyCandidate:
    """Return a candidate for a base topology with known exact `cost`."""
    return TopologyCandidate(spec, method, nodes, degree, *cost, True, traits, *cost, origin=(spec,))


def cost_of(candidate: TopologyCandidate) -> AllgatherCost:
    return AllgatherCost(candidate.steps, candidate.bandwidth_factor)


def frontier(candidates: Iterable[TopologyCandidate]) -> list[tuple[TopologyCandidate, ...]]:
    """Return the Pareto-optimal candidates in groups of equal cost, by increasing steps, each sorted by `tie_break`."""
    ordered = sorted(candidates, key=lambda candidate: (cost_of(candidate), candidate.tie_break))
    groups: list[tuple[TopologyCandidate, ...]] = []
    for (_, factor), group in groupby(ordered, key=cost_of):
        if not groups or factor < groups[-1][0].bandwidth_factor:
            groups.append(tuple(group))
    return groups


def promising(candidates: Iterable[TopologyCandidate]) -> list[TopologyCandidate]:
    """Remove candidates that would not be Pareto-optimal even if they reached their lower bounds. O(n * frontier).

    A candidate is removed if another candidate's predicted cost is better than these lower bounds. Candidates of equal
    cost are all kept.
    """
    everyone = list(candidates)
    best = [cost_of(group[0]) for group in frontier(everyone)]

    def is_beaten(candidate: TopologyCandidate) -> bool:
        steps, factor = lowest = candidate.least_steps, candidate.least_factor
        return any(cost != lowest and cost.steps <= steps and cost.bandwidth_factor <= factor for cost in best)

    return [candidate for candidate in everyone if not is_beaten(candidate)]


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
        return self.us_of(*cost_of(candidate))

    def best(self, candidates: Iterable[TopologyCandidate]) -> TopologyCandidate:
        """Return the fastest of `candidates`; if several are equally fast, the one with the fewest steps."""
        return min(candidates, key=lambda candidate: (self.time_us(candidate), candidate.steps))


def bfb_score(topology: Topology) -> AllgatherCost:
    """Return the exact cost of the BFB allgather, which `bfb_allgather` reaches if its number of chunks is not limited.

    T_B = (degree / N) * sum over steps of the largest link load in shards. If known symmetries (which are checked)
    leave few orbits, loads are computed for one node per orbit. Otherwise, they are computed with bit sets of nodes
    if diameter and degree are low, and with the general BFB kernel if not.

    Raises:
        InvalidInput: unless the network is regular and direct-connect with identical links. Above 2^14 nodes, it must
            also have known symmetries.
    """
    degree, nodes = topology.degree, topology.node_count
    if degree is None or topology.node_bandwidth is None:
        rule = "only regular networks of equal links have a bandwidth factor, not {}"
        raise InvalidInput(rule, topology.spec, "choose a direct-connect topology")
    chosen = np.unique(checked_orbits(topology), return_index=True)[1].astype(np.int64)  # one node per orbit
    if len(chosen) * (degree + 1) * _FEW <= nodes:
        problems = problems_of(network_of_nodes(topology, chosen))
        return _score(degree, nodes, *native.least_loads(0, len(chosen), *problems)[:2])
    if nodes > MAX_NODES_WITHOUT_SYMMETRIES:
        rule = f"a network of more than {MAX_NODES_WITHOUT_SYMMETRIES} nodes needs symmetries for a score of BFB"
        raise InvalidInput(rule, topology.spec, "use fewer nodes, or a network with symmetries")
    if degree <= MAX_DEGREE:
        tails = topology.links.src.reshape(-1, degree).copy()
        loads = native.loads_of_low_diameter(tails, chosen, _LOW_DIAMETER)
        if len(loads[0]):
            return _score(degree, nodes, *loads)
    return score_of_all_nodes(topology)


def score_of_all_nodes(topology: Topology) -> AllgatherCost:
    """Return the same cost as `bfb_score`, but compute it for every node with the slower kernel that makes schedules.

    The network must be regular and direct-connect with identical links.
    """
    degree, nodes = int(topology.degree or 0), topology.node_count
    return _score(degree, nodes, *native.least_loads(0, nodes, *problems_of(network_of(topology)))[:2])


def _score(degree: int, nodes: int, top: NDArray[np.int64], bottom: NDArray[np.int64]) -> AllgatherCost:
    """Return the cost of a BFB allgather whose largest link load in step i is `top[i]` / `bottom[i]` shards."""
    loads = map(Fraction, top.tolist(), bottom.tolist())
    return AllgatherCost(len(top), Fraction(degree, nodes) * sum(loads))


class ScoreCache(dict[str, AllgatherCost]):
    """Cache of exact BFB costs, indexed by topology spec."""

    def of(self, spec: str) -> AllgatherCost:
        """Return the BFB cost of the topology `spec`, computed in this process if it is not cached."""
        if spec not in self:
            self[spec] = bfb_score(parse_topology(spec))
        return self[spec]

    def compute(self, specs: Iterable[str], executor: Executor, progress: Progress | None = None) -> None:
        """Compute and cache the BFB costs of those `specs` that are not cached, in up to 64 tasks on `executor`."""
        missing = [spec for spec in dict.fromkeys(specs) if spec not in self]
        batches = [missing[first::_MOST_TASKS] for first in range(min(len(missing), _MOST_TASKS))]
        for batch, scores in zip(batches, executor.map(_score_all, batches, None, progress), strict=True):
            self |= zip(batch, scores, strict=True)


def _score_all(_shared: None, specs: Sequence[str]) -> list[AllgatherCost]:
    return [bfb_score(parse_topology(spec)) for spec in specs]
