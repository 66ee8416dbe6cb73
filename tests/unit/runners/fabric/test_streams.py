"""Which streams keep links busy, and what they get when only links set limits."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given

from chorale.runners.fabric.links import LinkOptions, LinkOverride
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.fabric.self_test import busy_streams, fair_rates, needed_s
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.reference import fair_flows
from tests.strategies import MIXED, strongly_connected_topologies


def planned(topology: Topology) -> FabricPlan:
    return plan_fabric(topology, Fraction(10), "x")


@pytest.mark.parametrize("spec", ["ring:4", "uniring:1,4", "hypercube:3", "bipartite:4", "switch:8,25", "a100:2"])
def test_regular_networks_are_busy_on_all_links(spec: str) -> None:
    plan = planned(parse_topology(spec))
    rates = fair_rates(plan, busy_streams(plan))
    carried = sum(rate * len(list(_path(plan, *stream))) for stream, rate in rates.items())
    assert carried == plan.bits_per_s


def test_streams_to_neighbours() -> None:
    assert busy_streams(planned(parse_topology("uniring:1,3"))) == [(0, 1), (1, 2), (2, 0)]


def test_streams_behind_a_switch_go_half_of_the_way_round() -> None:
    assert busy_streams(planned(parse_topology("switch:4,25"))) == [(0, 2), (1, 3), (2, 0), (3, 1)]


@given(strongly_connected_topologies(bandwidths=MIXED, switches=3))
def test_rates_are_max_min_fair(topology: Topology) -> None:
    plan = planned(topology)
    streams = busy_streams(plan)
    arcs = {arc: rate for cable in plan.cables for arc, rate in zip(_ways(cable.nodes), cable.bits_per_s, strict=True)}
    number = {arc: index for index, arc in enumerate(arcs)}
    routes = {index: tuple(number[arc] for arc in _path(plan, *stream)) for index, stream in enumerate(streams)}
    rates = fair_flows.fair_rates(routes, [Fraction(rate) for rate in arcs.values()])
    assert fair_rates(plan, streams) == {streams[index]: rate for index, rate in rates.items()}


def test_links_need_the_time_of_the_busiest_link_headers_included() -> None:
    plan = planned(parse_topology("ring:4"))  # 10 Mbit/s
    assert needed_s(plan, {(0, 1): 1198}, 9000) == 1250 * 8 / 1e7
    assert needed_s(plan, {(0, 1): 2 * 8948}, 9000) == 18000 * 8 / 1e7
    over_one_link = {(0, 1): 1198, (0, 2): 1198}  # rank 0 reaches rank 2 by rank 1
    assert plan.routes[0][2] == 1
    assert needed_s(plan, over_one_link, 9000) == 2 * 1250 * 8 / 1e7


def test_latency_is_that_of_the_path() -> None:
    options = LinkOptions(latency_us=Fraction(1000), overrides=(LinkOverride(0, 1, latency_us=Fraction(5000)),))
    plan = plan_fabric(parse_topology("ring:4"), Fraction(10), "x", options)
    assert needed_s(plan, {(1, 0): 1198}, 9000) == pytest.approx(0.002)
    assert needed_s(plan, {(0, 2): 1198}, 9000) == pytest.approx(0.007)


def _ways(nodes: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    return nodes, (nodes[1], nodes[0])


def _path(plan: FabricPlan, source: int, target: int) -> Iterator[tuple[int, int]]:
    while source != target:
        yield source, plan.routes[source][target]
        source = plan.routes[source][target]
