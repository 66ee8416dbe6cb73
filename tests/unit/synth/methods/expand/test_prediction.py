"""Predicted costs against the verified schedules they are about."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.expand.expand import (
    BaseNetwork,
    BidirectionalUnion,
    CartesianPower,
    DegreeExpansion,
    ExpansionPlan,
    LineGraph,
    base_schedule_builder,
    expand_allgather,
    expanded_schedule,
    expansion_plan,
)
from chorale.synth.methods.expand.prediction import bound_line, predict, predict_allgather, predict_line, prediction_of
from chorale.synth.methods.expand.schedules import line_schedule
from chorale.synth.topology.expansions import line_graph
from chorale.synth.topology.grammar import parse_spec
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology, transpose
from chorale.synth.verify.verify import verify
from tests.unit.synth.methods.expand.networks import SERIAL, breadth_first, regular_networks

MOST_LINKS = 1500


@st.composite
def recipes(draw: st.DrawFn, network: Topology) -> ExpansionPlan:
    """Up to three expansions of `network`, as long as the result stays small; there is a transpose now and then."""
    nodes, degree = network.node_count, network.degree
    flipped = draw(st.booleans())
    forwards: ExpansionPlan = BaseNetwork("random", flipped)
    backwards: ExpansionPlan = BaseNetwork("random", not flipped)
    for _ in range(draw(st.integers(1, 3))):
        kind, count = draw(st.sampled_from(["line", "degree", "power", "bidirectional"])), draw(st.integers(1, 3))
        if kind == "line":
            grown = nodes * degree, degree
            larger = [LineGraph(forwards, flipped), LineGraph(backwards, not flipped)]
        elif kind == "degree":
            grown = nodes * count, degree * count
            larger = [DegreeExpansion(forwards, count), DegreeExpansion(backwards, count)]
        elif kind == "power":
            grown = nodes**count, degree * count
            larger = [CartesianPower(forwards, count), CartesianPower(backwards, count)]
        else:
            grown = nodes, 2 * degree
            larger = [BidirectionalUnion(forwards, backwards), BidirectionalUnion(backwards, forwards)]
        if grown[0] * grown[1] <= MOST_LINKS:
            (nodes, degree), (forwards, backwards) = grown, larger
    return forwards


def is_as_predicted(recipe: ExpansionPlan, network: Topology) -> None:
    def schedule_of_base(base: BaseNetwork):
        return breadth_first(transpose(network) if base.transposed else network)

    verified = verify(expanded_schedule(recipe, schedule_of_base))
    predicted = predict(recipe, schedule_of_base)
    topology = verified.schedule.topology
    assert (predicted.nodes, predicted.degree) == (topology.compute_count, topology.degree)
    assert (predicted.steps, predicted.bandwidth_factor) == (verified.cost.steps, verified.cost.bandwidth_factor)


@given(st.data(), regular_networks(5, loops=False))
def test_any_expansions_of_random_networks(data, network):
    is_as_predicted(data.draw(recipes(network)), network)


@given(regular_networks(4), st.integers(1, 4))
def test_line_graphs_of_line_graphs(network, times):
    schedule = breadth_first(network)
    predicted, bound = predict_line(schedule, times), bound_line(prediction_of(schedule), times)
    assert predicted.bandwidth_factor <= bound.bandwidth_factor
    for _ in range(times):
        if len(schedule.topology.links) * network.degree > MOST_LINKS:
            return
        schedule = line_schedule(schedule, line_graph(schedule.topology, "line"))
    cost = verify(schedule).cost
    assert (predicted.steps, predicted.bandwidth_factor) == (cost.steps, cost.bandwidth_factor)


@pytest.mark.parametrize(
    ("spec", "factor", "bound"),
    [
        ("uniring:1,7", "6/7", "1"),  # its own line graph
        ("complete:2", "1/2", "1"),
        ("uniring:2,2", "3/4", "1"),  # all that comes after a link is the node where its shard began
        ("complete:3", "1", "1"),  # one of the two ways on leads elsewhere
        ("bipartite:4", "1", "1"),
    ],
)
def test_where_the_bound_of_theorem_7_is_loose(spec, factor, bound):
    schedule = expand_allgather(parse_topology(f"transpose(transpose(line({spec})))"), SERIAL)
    predicted = predict_allgather(f"line({spec})", SERIAL)
    assert predicted.bandwidth_factor == verify(schedule).cost.bandwidth_factor == Fraction(factor)
    base = predict_allgather(spec, SERIAL)
    assert bound_line(base).bandwidth_factor == base.bandwidth_factor + Fraction(1, base.nodes) == Fraction(bound)


@pytest.mark.parametrize(
    ("spec", "steps", "factor"),
    [
        ("line(degree(uniring:2,2;1))", 2, "3/4"),  # expansions that leave everything as it was
        ("line(power(uniring:2,2;1))", 2, "3/4"),
        ("line(uniring:2,2;3)", 4, "9/8"),  # a walk that comes back to its first link saves nothing twice
        ("bidirectional(genkautz:2,9)", 3, "14/9"),  # the transpose has less to do in the last step
        ("bidirectional(transpose(genkautz:2,9))", 3, "14/9"),
        ("transpose(genkautz:2,9)", 3, "10/9"),
    ],
)
def test_special_cases(spec, steps, factor):
    cost = verify(expanded_schedule(expansion_plan(parse_spec(spec)), base_schedule_builder(SERIAL))).cost
    predicted = predict_allgather(spec, SERIAL)
    assert (predicted.steps, predicted.bandwidth_factor) == (cost.steps, cost.bandwidth_factor)
    assert (predicted.steps, predicted.bandwidth_factor) == (steps, Fraction(factor))


@pytest.mark.parametrize(
    "spec", ["line(mesh:2x3)", "degree(without(ring:5;link=0-1);2)", "power(scaled(ring:4;link=0-1;factor=1/2);2)"]
)
def test_costs_are_predicted_for_regular_networks_of_unit_capacity(spec):
    with pytest.raises(
        InvalidInput, match="the cost of an expansion is predicted only on regular networks of unit capacity, not on"
    ):
        predict_allgather(spec, SERIAL)
