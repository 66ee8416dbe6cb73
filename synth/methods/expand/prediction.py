"""Computes the exact cost of an expanded schedule without making the schedule.

Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", theorems 7 to 12 and appendix
A.6. Theorems 11 and 12 are exact. Theorem 7 is only a bound, because it also counts shards that would return to their
origin: `predict_line` counts exactly, and `bound_line` gives the bound.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import zip_longest

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
        """Bandwidth time T_B, relative to M / B."""
        return sum(self.loads, Fraction(0)) * self.degree / self.nodes


def prediction_of(schedule: Schedule) -> Prediction:
    """Return the cost of an existing schedule on a regular network of unit capacity. O(rows)."""
    return Prediction(schedule.topology.compute_count, regular_degree(schedule.topology), line_graph_loads(schedule, 0))


def predict_allgather(spec: str, executor: Executor) -> Prediction:
    """Return the exact cost of `expand_allgather` on the network `spec`.

    Makes the schedules of the base and, for a line graph, of the inner network (unless that is a degree expansion or
    power), but nothing as large as the result. Raises InvalidInput as `expand_allgather` does, and for networks that
    are not regular or not of unit capacity.
    """
    return predict(expansion_plan(parse_spec(spec)), base_schedule_builder(executor))


def predict_line(schedule: Schedule, times: int = 1) -> Prediction:
    """Return the exact cost of expanding `schedule`, on a d-regular network G, to the line graph L^n(G), n = `times`.

    No shard of `schedule` may be sent back to its origin. For d > 1, each expansion adds one step. A single cycle is
    its own line graph; steps without transfers are left out.
    """
    degree, nodes = regular_degree(schedule.topology), schedule.topology.compute_count
    added = [Fraction(degree) ** (times - time) for time in range(times, 0, -1)]
    if degree == 1:
        # The only walk from a node returns to this node after a full turn.
        added = [Fraction(1) for time in range(times, 0, -1) if times - time < nodes - 1]
    loads = (*added, *line_graph_loads(schedule, times))
    return Prediction(nodes * degree**times, degree, tuple(load for load in loads if load))


def bound_line(base: Prediction, times: int = 1) -> Prediction:
    """Return an upper bound on the cost on the line graph L^n(G), n = `times` (theorem 7).

    The bound is exact if G itself is a power or degree expansion: from every node, a walk along another dimension or
    through other copies avoids the origins of the shards that the link into this node carries.
    """
    loads = base.loads
    for _ in range(times):
        loads = (Fraction(1), *(load * base.degree for load in loads))
    return Prediction(base.nodes * base.degree**times, base.degree, loads)


def predict_degree(base: Prediction, copies: int) -> Prediction:
    """Return the exact cost with n = `copies` of each node (theorem 11): one more step of (n - 1) / (n d) shards."""
    last = (Fraction(copies - 1, copies * base.degree),) if copies > 1 else ()
    return Prediction(base.nodes * copies, base.degree * copies, base.loads + last)


def predict_power(base: Prediction, times: int) -> Prediction:
    """Return the exact cost on the product of n = `times` copies of G (theorem 12)."""
    loads = tuple(load * base.nodes**stage / times for stage in range(times) for load in base.loads)
    return Prediction(base.nodes**times, base.degree * times, loads)


def predict_bidirectional(forwards: Prediction, backwards: Prediction) -> Prediction:
    """Return the exact cost on the union of G and its transpose (appendix A.6). The slower half limits each step."""
    both = zip_longest(forwards.loads, backwards.loads, fillvalue=Fraction(0))
    return Prediction(forwards.nodes, 2 * forwards.degree, tuple(max(pair) / 2 for pair in both))


def predict(plan: ExpansionPlan, schedule_of_base: ScheduleOfBase) -> Prediction:
    """Return the exact cost of the schedule for `plan`. `schedule_of_base` makes the schedules of bases."""
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
    """Return the degree of a regular network of unit capacity. Raises InvalidInput for other networks."""
    degree = topology.degree
    if degree is None or topology.node_bandwidth is None:
        rule = "the cost of an expansion is predicted only on regular networks of unit capacity, not on {}"
        raise InvalidInput(rule, topology.spec, "expand it and verify")
    return degree
