"""The exact cost of an expanded schedule before it exists, and that of breadth-first broadcast on a line graph.

Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", theorems 7 to 12 and
appendix A.6. Theorems 11 and 12 are exact; theorem 7 is only a bound, because nothing is sent to the node where it
began. `predict_line` counts exactly, `bound_line` gives the bound.
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
    """An allgather on a regular network of unit capacity, known by the busiest link of each step.

    loads: for each step, the largest number of shards that any link carries
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
    """Return the facts of a schedule that exists. O(rows). Raises InvalidInput unless regular and of unit capacity."""
    return Prediction(schedule.topology.compute_count, regular_degree(schedule.topology), line_graph_loads(schedule, 0))


def predict_allgather(spec: str, executor: Executor) -> Prediction:
    """Return what `expand_allgather` on the network `spec` costs, exactly.

    Makes the schedule of the base, and those below a line graph whose cost depends on more than loads (unless it is
    of a degree expansion or power); nothing as large as the result. Raises InvalidInput as `expand_allgather` does,
    and for networks that are not regular or not of unit capacity.
    """
    return predict(expansion_plan(parse_spec(spec)), base_schedule_builder(executor))


def predict_line(schedule: Schedule, times: int = 1) -> Prediction:
    """Return the cost of `schedule` on a d-regular G expanded to L^n(G), n = `times`; exact, by walks of n links.

    No shard of `schedule` may be sent to where it starts. On a d-regular G with d > 1 every step stays, one is added
    for each time; a single cycle is its own line graph, and steps that turn out empty are left out.
    """
    degree, nodes = regular_degree(schedule.topology), schedule.topology.compute_count
    added = [Fraction(degree) ** (times - time) for time in range(times, 0, -1)]
    if degree == 1:
        # The only walk from a node comes back to it after a full turn.
        added = [Fraction(1) for time in range(times, 0, -1) if times - time < nodes - 1]
    loads = (*added, *line_graph_loads(schedule, times))
    return Prediction(nodes * degree**times, degree, tuple(load for load in loads if load))


def bound_line(base: Prediction, times: int = 1) -> Prediction:
    """Return an upper bound of the cost on L^n(G), n = `times` (theorem 7): exact where no link saves anything.

    That is so where G is itself a power or degree expansion: from every node a walk leads around the shards that the
    link into it carries, along another dimension or through other copies.
    """
    loads = base.loads
    for _ in range(times):
        loads = (Fraction(1), *(load * base.degree for load in loads))
    return Prediction(base.nodes * base.degree**times, base.degree, loads)


def predict_degree(base: Prediction, copies: int) -> Prediction:
    """Return the cost on G * n, n = `copies` (theorem 11): one more step of (n - 1) / (n d) shards a link. Exact."""
    last = (Fraction(copies - 1, copies * base.degree),) if copies > 1 else ()
    return Prediction(base.nodes * copies, base.degree * copies, base.loads + last)


def predict_power(base: Prediction, times: int) -> Prediction:
    """Return the cost on the product of n = `times` copies of G (theorem 12). Exact."""
    loads = tuple(load * base.nodes**stage / times for stage in range(times) for load in base.loads)
    return Prediction(base.nodes**times, base.degree * times, loads)


def predict_bidirectional(forwards: Prediction, backwards: Prediction) -> Prediction:
    """Return the cost on the union of G and its transpose from those on each (appendix A.6). Exact.

    Equal costs stay as they are; else every step takes as long as the slower.
    """
    both = zip_longest(forwards.loads, backwards.loads, fillvalue=Fraction(0))
    return Prediction(forwards.nodes, 2 * forwards.degree, tuple(max(pair) / 2 for pair in both))


def predict(plan: ExpansionPlan, schedule_of_base: ScheduleOfBase) -> Prediction:
    """Return the cost of expanding `schedule_of_base` to the network that `plan` describes; see `predict_allgather`."""
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
    """Return the degree of a regular network of unit capacity; raises InvalidInput for others."""
    degree = topology.degree
    if degree is None or topology.node_bandwidth is None:
        rule = "the cost of an expansion is predicted on regular networks of unit capacity"
        raise InvalidInput(rule, topology.spec, "expand it and verify")
    return degree


MAX_DEGREE = 12
_MAX_SEARCHED = 2**29
Counts = NDArray[np.int64]


def predict_bfb_line(topology: Topology) -> Prediction:
    """Return what the best BFB allgather on L(G) costs, for a d-regular G of unit capacity with d <= 12. Exact.

    At node (u, w) of L(G) in step t + 1 arrive the shards of all links into every v at distance t from u, over the
    in-links of u that v may use in G. So the problem of u and t has each shard d times, less the shard of (u, w)
    itself, if w is at distance t. For a set S of in-links, with n(S) the shards v that can use no others, the step
    takes as long as the largest (d n(S) - [(u, w) is among them]) / |S|, and its first step 1 shard.

    Theorem 10 of the full paper, T_B(L(G)) = T_B(G) + 1 / N, leaves out what a node need not receive from itself: it
    is an upper bound, and L(G) can be bandwidth-optimal where it says otherwise. Of nodes u that known symmetries (each
    checked) take to one another, one is looked at: O(orbits (N d^2 + D d 2^d)), D the diameter, or N for N d orbits.
    Raises InvalidInput for other networks, and those that take too long.
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
    """Return the longest of each step at the nodes (u, w), in 1 / `unit` shards.

    distance, usable: distance of each v to u, and the in-links of u that it can use as bits; heads: all w
    """
    steps, sets = int(distance.max()) + 1, np.arange(1 << degree)
    inside = np.bincount(distance * len(sets) + usable, minlength=steps * len(sets)).reshape(steps, len(sets))
    for bit in range(degree):
        halves = inside.reshape(steps, -1, 2, 1 << bit)
        halves[:, :, 1, :] += halves[:, :, 0, :]
    inside *= degree
    together = int(distance[heads[0]])
    if np.all(distance[heads] == together):  # else some (u, w) has nothing of its own in the set, and is the busiest
        needed = np.bitwise_or.reduce(usable[heads])
        inside[together, (sets & needed) == needed] -= 1
    sizes = np.bitwise_count(sets[1:]).astype(np.int64)
    longest: Counts = (inside[1:, 1:] * (unit // sizes)).max(axis=1)
    return longest
