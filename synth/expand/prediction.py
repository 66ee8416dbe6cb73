"""What an expanded schedule will cost, exactly, before it exists.

Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", theorems 7 to 12 and
appendix A.6. Theorems 11 and 12 are exact. Theorem 7 is a bound: every use of a shard on a link is taken d times in
the line graph, but nothing is sent to the node where it began, so a link whose every continuation meets a shard
that it carries is less busy than d times its load. `predict_line` counts that, `bound_line` does not.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

from chorale.synth.errors import InvalidInput
from chorale.synth.executor.port import Executor
from chorale.synth.expand.expand import ScheduleOfBase, base_schedule_builder, expanded_schedule
from chorale.synth.expand.recipe import (
    BaseNetwork,
    BidirectionalUnion,
    CartesianPower,
    DegreeExpansion,
    ExpansionPlan,
    LineGraph,
    expansion_plan,
)
from chorale.synth.expand.walks import line_graph_loads
from chorale.synth.schedule.schedule import Schedule
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


def predict(recipe: ExpansionPlan, schedule_of_base: ScheduleOfBase) -> Prediction:
    """Return what `schedule_of` costs on the network that `recipe` describes; see `predict_allgather`."""
    if isinstance(recipe, BaseNetwork):
        return prediction_of(schedule_of_base(recipe))
    if isinstance(recipe, DegreeExpansion):
        return predict_degree(predict(recipe.inner, schedule_of_base), recipe.copies)
    if isinstance(recipe, CartesianPower):
        return predict_power(predict(recipe.inner, schedule_of_base), recipe.times)
    if isinstance(recipe, BidirectionalUnion):
        return predict_bidirectional(
            predict(recipe.forwards, schedule_of_base), predict(recipe.backwards, schedule_of_base)
        )
    times, inner = _lines(recipe)
    if (isinstance(inner, DegreeExpansion) and inner.copies > 1) or (
        isinstance(inner, CartesianPower) and inner.times > 1
    ):
        return bound_line(predict(inner, schedule_of_base), times)
    return predict_line(expanded_schedule(inner, schedule_of_base), times)


def _lines(recipe: LineGraph) -> tuple[int, ExpansionPlan]:
    times, inner = 1, recipe.inner
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
