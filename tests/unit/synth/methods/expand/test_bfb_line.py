"""The predicted cost of BFB on line graphs against BFB itself on the line graph."""

from fractions import Fraction

import pytest
from hypothesis import given

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.bfb.bfb import bfb_allgather
from chorale.synth.methods.expand.expand import expand_allgather
from chorale.synth.methods.expand.prediction import predict_bfb_line, prediction_of
from chorale.synth.topology.expansions import line_graph
from chorale.synth.topology.spec import parse_topology
from tests.unit.synth.methods.expand.networks import SERIAL, regular_networks


def built_loads(network):
    """Return the load of each step on the line graph, of shards that can be divided at will."""
    schedule = bfb_allgather(line_graph(network, "line"), SERIAL, chunks=1)
    return tuple(Fraction(entry["value"]) for entry in schedule.certificate["loads"])


@given(regular_networks(7))
def test_random_networks(network):
    predicted = predict_bfb_line(network)
    assert predicted.loads == built_loads(network)
    assert predicted.nodes == len(network.links)


@pytest.mark.parametrize(
    ("spec", "factor"),
    [
        ("base:d3", "15/16"),
        ("power(uniring:1,4;2)", "31/32"),
        ("bipartite:4", "1"),
        ("uniring:1,6", "5/6"),
        ("diamond", "9/8"),
    ],
)
def test_where_theorem_10_is_loose(spec, factor):
    network = parse_topology(spec)
    predicted = predict_bfb_line(network)
    assert predicted.bandwidth_factor == Fraction(factor)
    assert predicted.loads == built_loads(network)


def test_bfb_on_the_line_graph_can_be_better_than_the_expanded_schedule():
    expanded = prediction_of(expand_allgather(parse_topology("line(base:d3)"), SERIAL))
    assert (expanded.bandwidth_factor, expanded.steps) == (1, predict_bfb_line(parse_topology("base:d3")).steps)


@pytest.mark.parametrize("spec", ["mesh:2x3", "complete:14"])
def test_what_is_refused(spec):
    with pytest.raises(InvalidInput, match="predicted"):
        predict_bfb_line(parse_topology(spec))
