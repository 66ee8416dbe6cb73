"""The exact cost of an expanded schedule without making it, and of breadth-first broadcast on a line graph.

Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", theorems 7 to 12 and
appendix A.6. Theorems 11 and 12 are exact. Theorem 7 is only a bound, because no shard is sent back to its node:
`predict_line` counts exactly, `bound_line` gives the bound.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor
from chorale.synth.methods.expand.expand import (
    BaseNetwork,
    BidirectionalUnion,
    CartesianPower,
    DegreeExpansion,
    ExpansionPlan,
    LineGraph,
    ScheduleOfBase,
    base_schedule_builder,
    expanded_schedule,
    expansion_plan,
)
from chorale.synth.methods.expand.schedules import line_graph_loads
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.grammar import parse_spec
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Prediction:
    """Cost of an allgather on a regular network of unit capacity.

    loads: for each step, the number of shards on its busiest link
    """

    nodes: int
    degree: int
    loads: tuple[Fraction, ...]

    @property
    def steps(self) -> int:
        return len(self.loads)

    @property
    def bandwidth_factor(self) -> Fraction:
        """T_B / (M / B)."""
        return sum(self.loads, Fraction(0)) * self.degree / self.nodes


def prediction_of(schedule: Schedule) -> Prediction:
    """Return the cost of an existing schedule. O(rows). InvalidInput unless regular and of unit capacity."""
    return Prediction(schedule.topology.compute_count, regular_degree(schedule.topology), line_graph_loads(schedule, 0))


def predict_allgather(spec: str, executor: Executor) -> Prediction:
    """Return the exact cost of `expand_allgather` on the network `spec`.

    Makes the schedule of the base, and of the network below a line graph unless that is a degree expansion or power,
    but nothing as large as the result. Raises InvalidInput as `expand_allgather` does, and for networks that are not
    regular or not of unit capacity.
    """
    return predict(expansion_plan(parse_spec(spec)), base_schedule_builder(executor))


def predict_line(schedule: Schedule, times: int = 1) -> Prediction:
    """Return the exact cost of `schedule`, on a d-regular G, expanded to L^n(G), n = `times`; by walks of n links.

    No shard of `schedule` may be sent back to its node. For d > 1, each expansion adds one step. A single cycle is its
    own line graph, and empty steps are left out.
    """
    degree, nodes = regular_degree(schedule.topology), schedule.topology.compute_count
    added = [Fraction(degree) ** (times - time) for time in range(times, 0, -1)]
    if degree == 1:
        # The only walk from a node comes back to it after a full turn.
        added = [Fraction(1) for time in range(times, 0, -1) if times - time < nodes - 1]
    loads = (*added, *line_graph_loads(schedule, times))
    return Prediction(nodes * degree**times, degree, tuple(load for load in loads if load))


def bound_line(base: Prediction, times: int = 1) -> Prediction:
    """Return an upper bound on the cost on L^n(G), n = `times` (theorem 7).

    It is exact if G is itself a power or degree expansion: from every node, a walk along another dimension or through
    other copies avoids the nodes of the shards that the link into it carries.
    """
    loads = base.loads
    for _ in range(times):
        loads = (Fraction(1), *(load * base.degree for load in loads))
    return Prediction(base.nodes * base.degree**times, base.degree, loads)


def predict_degree(base: Prediction, copies: int) -> Prediction:
    """Return the exact cost on G * n, n = `copies` (theorem 11): one more step of (n - 1) / (n d) shards per link."""
    last = (Fraction(copies - 1, copies * base.degree),) if copies > 1 else ()
    return Prediction(base.nodes * copies, base.degree * copies, base.loads + last)


def predict_power(base: Prediction, times: int) -> Prediction:
    """Return the exact cost on the product of n = `times` copies of G (theorem 12)."""
    loads = tuple(load * base.nodes**stage / times for stage in range(times) for load in base.loads)
    return Prediction(base.nodes**times, base.degree * times, loads)


def predict_bidirectional(forwards: Prediction, backwards: Prediction) -> Prediction:
    """Return the exact cost on the union of G and its transpose (appendix A.6); a step is as slow as the slower one."""
    both = zip_longest(forwards.loads, backwards.loads, fillvalue=Fraction(0))
    return Prediction(forwards.nodes, 2 * forwards.degree, tuple(max(pair) / 2 for pair in both))


def predict(plan: ExpansionPlan, schedule_of_base: ScheduleOfBase) -> Prediction:
    """Return the cost of the schedule of `plan` with these schedules of bases; see `predict_allgather`."""
    if isinstance(plan, BaseNetwork):
        return prediction_of(schedule_of_base(plan))
    if isinstance(plan, DegreeExpansion):
        return predict_degree(predict(plan.inner, schedule_of_base), plan.copies)
    if isinstance(plan, CartesianPower):
        return predict_power(predict(plan.inner, schedule_of_base), plan.times)
    if isinstance(plan, BidirectionalUnion):
        return predict_bidirectional(
            predict(plan.forwards, schedule_of_base), predict(plan.backwards, schedule_of_base)
        )
    times, inner = _lines(plan)
    if (isinstance(inner, DegreeExpansion) and inner.copies > 1) or (
        isinstance(inner, CartesianPower) and inner.times > 1
    ):
        return bound_line(predict(inner, schedule_of_base), times)
    return predict_line(expanded_schedule(inner, schedule_of_base), times)


def _lines(plan: LineGraph) -> tuple[int, ExpansionPlan]:
    times, inner = 1, plan.inner
    while isinstance(inner, LineGraph):
        times, inner = times + 1, inner.inner
    return times, inner


def regular_degree(topology: Topology) -> int:
    """Return the degree of a regular network of unit capacity; raise InvalidInput for others."""
    degree = topology.degree
    if degree is None or topology.node_bandwidth is None:
        rule = "the cost of an expansion is predicted only on regular networks of unit capacity, not on {}"
        raise InvalidInput(rule, topology.spec, "expand it and verify")
    return degree


MAX_DEGREE = 12
_MAX_SEARCHED = 2**29
Counts = NDArray[np.int64]


def predict_bfb_line(topology: Topology) -> Prediction:
    """Return the exact cost of the best BFB allgather on L(G), for a d-regular G of unit capacity with d <= 12.

    In step t + 1, node (u, w) of L(G) receives the shards of all links into every v at distance t from u, over the
    in-links of u that v may use in G. So the problem of u and t has each shard d times, without the shard of (u, w)
    itself if w is at distance t. For a set S of in-links, let n(S) be the number of shards v that can use no others:
    the step takes the largest (d n(S) - [(u, w) is among them]) / |S|, and the first step takes 1 shard.

    Theorem 10 of the full paper, T_B(L(G)) = T_B(G) + 1 / N, ignores that a node need not receive its own shard: it is
    an upper bound, and L(G) can be bandwidth-optimal against it. One node u of each orbit of known symmetries (each
    checked) is enough: O(orbits (N d^2 + D d 2^d)) with the diameter D.

    Raises:
        InvalidInput: for other networks, and for those that take too long.
    """
    degree, nodes = regular_degree(topology), topology.compute_count
    if degree > MAX_DEGREE:
        rule = f"the cost of BFB on a line graph is predicted up to degree {MAX_DEGREE}"
        raise InvalidInput(rule, f"{topology.spec} of degree {degree}", "make the schedule with bfb")
    links = topology.links
    tails = links.src.reshape(nodes, degree)
    chosen = np.unique(checked_orbits(topology), return_index=True)[1]
    targets = np.unique(np.concatenate([chosen, tails[chosen].ravel()]))
    if len(targets) * len(links) > _MAX_SEARCHED:
        rule = f"the cost of BFB on a line graph is predicted by searches that pass up to {_MAX_SEARCHED} links"
        raise InvalidInput(rule, topology.spec, "use fewer nodes, or a network with symmetries")
    hops = distances_to(topology, targets)
    row = np.zeros(nodes, dtype=np.int64)
    row[targets] = np.arange(len(targets))
    heads = links.dst[np.argsort(links.src, kind="stable")].reshape(nodes, degree)
    unit = lcm(*range(1, degree + 1))
    times = np.zeros(int(hops.max()), dtype=np.int64)
    for node in chosen:
        distance = hops[row[node]].astype(np.int64)
        near = hops[row[tails[node]]].astype(np.int64) + 1 == distance
        usable = (near << np.arange(degree)[:, None]).sum(axis=0)
        longest = _step_times(distance, usable, heads[node], degree, unit)
        times[: len(longest)] = np.maximum(times[: len(longest)], longest)
    loads = (Fraction(1), *(Fraction(int(time), unit) for time in times if time))
    return Prediction(nodes * degree, degree, loads)


def _step_times(distance: Counts, usable: Counts, heads: NDArray[np.int32], degree: int, unit: int) -> Counts:
    """Return the longest time of each step at the nodes (u, w), in 1 / `unit` shards.

    distance, usable: per node v, its distance to u and the in-links of u that it can use, as bits;  heads: all w
    """
    steps, sets = int(distance.max()) + 1, np.arange(1 << degree)
    inside = np.bincount(distance * len(sets) + usable, minlength=steps * len(sets)).reshape(steps, len(sets))
    for bit in range(degree):
        halves = inside.reshape(steps, -1, 2, 1 << bit)
        halves[:, :, 1, :] += halves[:, :, 0, :]
    inside *= degree
    together = int(distance[heads[0]])
    if np.all(distance[heads] == together):  # otherwise some (u, w) has no own shard in the set and is the busiest
        needed = np.bitwise_or.reduce(usable[heads])
        inside[together, (sets & needed) == needed] -= 1
    sizes = np.bitwise_count(sets[1:]).astype(np.int64)
    longest: Counts = (inside[1:, 1:] * (unit // sizes)).max(axis=1)
    return longest
