"""Options of links, sizes that follow from rates, and which streams keep links busy."""

from collections.abc import Iterator
from fractions import Fraction

import pytest
from hypothesis import given

from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.fabric.links import (
    FabricLinks,
    SelfTest,
    wire_piece_bytes,
    wire_queue_bytes,
)
from chorale.runners.fabric.plan import FabricPlan, plan_fabric
from chorale.runners.fabric.self_test import busy_streams, fair_rates, needed_s
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.reference import fair_flows
from tests.strategies import MIXED, strongly_connected_topologies

RING = parse_topology("ring:4")


def test_numbers_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidInput, match="the latency of a link must be 0 to 10000000 microseconds, got -1"):
        plan_fabric(RING, Fraction(10), "x", Fraction(-1))


def test_a_link_of_its_own_rate_is_part_of_the_spec() -> None:
    slow = plan_fabric(parse_topology("scaled(ring:4;link=1>0;factor=1/5)"), Fraction(10), "x", Fraction(7))
    cables = {cable.nodes: cable for cable in slow.cables}
    assert cables[0, 1].bits_per_s == (10_000_000, 2_000_000)
    assert cables[0, 3].bits_per_s == (10_000_000, 10_000_000)
    assert slow.latency_us == 7


def test_sizes_follow_the_rate_within_bounds() -> None:
    assert [wire_piece_bytes(bits) for bits in (10**6, 10**8, 10**9)] == [9000, 37_500, 65_536]
    assert wire_piece_bytes(10**8, at_switch=True) == 12_500
    assert wire_queue_bytes(10**6, Fraction(0)) == 2**21
    assert wire_queue_bytes(10**7, Fraction(8_000)) == 2_500_000 + 10_000
    assert wire_queue_bytes(10**9, Fraction(0)) == 2**24


def test_facts_of_links_survive_as_text_and_tell_environments_apart() -> None:
    test = SelfTest(0.97, 4096, 0.1, 0.2)
    links = FabricLinks(latency_us="5", threads=2, wire_pid=7, self_test=test)
    fabric = EmulatedFabric("up", "ring:4", RING.id, Fraction(50), 4, 0, 400, False, 1, links)
    assert EmulatedFabric.from_line(fabric.to_line(), 1) == fabric
    assert fabric.facts() == {
        "network": "fabric", "fabric": "up", "link_mbps": 50.0, "links": "wire", "link_latency_us": "5",
        "link_threads": 2, "mtu_bytes": 9000,
        "congestion_control": "reno",
    }  # fmt: skip


def test_a_fabric_is_the_same_only_with_the_same_links() -> None:
    links = FabricLinks(latency_us="5")
    fabric = EmulatedFabric("up", "ring:4", RING.id, Fraction(50), 4, 0, 400, False, 1, links)
    assert fabric.is_as(RING.id, Fraction(50), Fraction(5))
    assert not fabric.is_as(RING.id, Fraction(51), Fraction(5))
    assert not fabric.is_as(RING.id, Fraction(50), Fraction(0))


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
    plan = plan_fabric(parse_topology("ring:4"), Fraction(10), "x", Fraction(1000))
    assert needed_s(plan, {(1, 0): 1198}, 9000) == pytest.approx(0.002)
    assert needed_s(plan, {(0, 2): 1198}, 9000) == pytest.approx(0.003)


def _ways(nodes: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    return nodes, (nodes[1], nodes[0])


def _path(plan: FabricPlan, source: int, target: int) -> Iterator[tuple[int, int]]:
    while source != target:
        yield source, plan.routes[source][target]
        source = plan.routes[source][target]
