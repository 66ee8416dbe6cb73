"""Plans of fabrics: ways, cables and rates of every network; sizes that follow from rates; and the texts of set-up."""

import itertools
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from chorale.runners.fabric.fabric import EmulatedFabric, wire_lines
from chorale.runners.fabric.plan import (
    Cable,
    FabricPlan,
    namespace_name,
    namespaces_script,
    nodes_script,
    path_of,
    plan_fabric,
    rank_address,
    wire_piece_bytes,
    wire_queue_bytes,
)
from chorale.runners.fabric.self_test import busy_streams, fair_rates, needed_s
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology
from tests.reference import fair_flows
from tests.strategies import MIXED, strongly_connected_topologies

networks = strongly_connected_topologies(bandwidths=MIXED, switches=3)


def planned(spec: str, link_mbps: int = 10) -> FabricPlan:
    return plan_fabric(parse_topology(spec), Fraction(link_mbps), "x")


def way(plan: FabricPlan, source: int, target: int) -> list[int]:
    nodes = [source]
    while nodes[-1] != target:
        nodes.append(plan.routes[nodes[-1]][target])
        assert len(nodes) <= len(plan.routes), f"{source} to {target} goes in circles: {nodes}"
    return nodes


@given(networks)
def test_every_pair_has_a_way_of_fewest_links(topology: Topology) -> None:
    plan = plan_fabric(topology, Fraction(10), "x")
    hops = distances_to(topology)
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    for source in range(topology.node_count):
        for target in range(topology.compute_count):
            nodes = way(plan, source, target)
            assert len(nodes) == hops[target, source] + 1
            assert set(itertools.pairwise(nodes)) <= links


@given(networks, st.integers(1, 100))
def test_a_cable_has_the_rate_of_the_links_between_its_ends(topology: Topology, link_mbps: int) -> None:
    plan = plan_fabric(topology, Fraction(link_mbps), "x")
    for cable in plan.cables:
        for pair, rate in zip((cable.nodes, cable.nodes[::-1]), cable.bits_per_s, strict=True):
            links = [link.bandwidth for link in topology.links if (link.src, link.dst) == pair]
            assert rate == int(sum(links) * link_mbps * 10**6)
    assert len({cable.nodes for cable in plan.cables}) == len(plan.cables)
    assert plan.bits_per_s == sum(sum(cable.bits_per_s) for cable in plan.cables)


def test_traffic_spreads_over_equal_ways_and_streams_go_to_neighbours_or_half_of_the_way_round_a_switch() -> None:
    plan = planned("bipartite:4")
    used = {way(plan, source, target)[1] for source in range(4) for target in range(4) if source != target}
    assert used == {4, 5, 6, 7}
    assert busy_streams(planned("uniring:1,3")) == [(0, 1), (1, 2), (2, 0)]
    assert busy_streams(planned("switch:4,25")) == [(0, 2), (1, 3), (2, 0), (3, 1)]


def test_loops_carry_nothing_and_networks_in_gigabytes_become_scale_models() -> None:
    topology = Topology("", ("a", "b"), 2, Links.build([Link(0, 0), Link(0, 1), Link(1, 0)]))
    assert plan_fabric(topology, Fraction(10), "x").cables == (Cable((0, 1), (10_000_000, 10_000_000)),)
    rates = {rate for cable in planned("a100:2", 12).cables for rate in cable.bits_per_s}
    assert rates == {12_000_000, 1_000_000}


def test_addresses_and_names() -> None:
    assert [rank_address(rank) for rank in (0, 1, 255)] == ["10.99.0.1", "10.99.0.2", "10.99.1.0"]
    assert namespace_name("ring-a", 12) == "chorale-ring-a-12"
    for name in ("a", "A1", "ring-a", "a" * 24):
        assert plan_fabric(parse_topology("ring:3"), Fraction(10), name).name == name


@pytest.mark.parametrize(
    ("spec", "rate", "name", "message"),
    [
        *(("ring:3", "10", name, "must be 1 to 24 letters, digits") for name in ("", "-a", "a-", "a/b", "a.b", "a\n")),
        *(("ring:3", "10", name, "the name of a fabric must be 1 to 24") for name in ("a b", "a" * 25, "ä")),
        *(("ring:3", rate, "x", r"between 0\.1 and 100000 Mbit/s") for rate in ("0", "-5", "1/1000", "1000000")),
        ("ring:257", "10", "x", "at most 256 nodes, switches included, got 257"),
    ],
)
def test_what_cannot_be_a_fabric_is_refused(spec: str, rate: str, name: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        plan_fabric(parse_topology(spec), Fraction(rate), name)


GOLDEN = Path(__file__).parents[3] / "golden"


def script(spec: str, link_mbps: str) -> str:
    """Return all that the shell is told."""
    plan = plan_fabric(parse_topology(spec), Fraction(link_mbps), "x")
    return namespaces_script(plan) + nodes_script(plan)


@pytest.mark.parametrize(
    ("spec", "link_mbps", "file"),
    [("uniring:1,3", "50", "fabric-one-way-ring.sh"), ("switch:2,25", "200", "fabric-switch.sh")],
)
def test_the_whole_text(spec: str, link_mbps: str, file: str) -> None:
    assert script(spec, link_mbps) == (GOLDEN / file).read_text()


def test_what_the_process_of_the_links_is_told() -> None:
    plan = plan_fabric(parse_topology("uniring:1,3"), Fraction(50), "x")
    lines = list(wire_lines(plan, "/ns", 2))
    assert lines[:7] == [
        "threads 2",
        "namespace /ns/chorale-x-0", "device 0 to1", "device 1 to2",
        "namespace /ns/chorale-x-1", "device 2 to0", "device 3 to2",
    ]  # fmt: skip
    assert [line for line in lines if line.startswith("link")] == [
        "link 0 2 50000000 12500000 0 0",
        "link 2 0 50000000 12500000 1 1",  # its way back, for acknowledgements
        "link 1 4 50000000 12500000 1 0",
        "link 4 1 50000000 12500000 0 1",
        "link 3 5 50000000 12500000 0 0",
        "link 5 3 50000000 12500000 1 1",
    ]
    assert lines[-1] == "go"


HEADER_SIZES = 11  # of TCP, 20 to 60 bytes


@pytest.mark.parametrize("spec", ["ring:5", "uniring:1,5", "kautz:2,2"])
def test_a_rank_detours_for_every_rank_that_only_sends_to_it(spec: str) -> None:
    text, topology = script(spec, "50"), parse_topology(spec)
    links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    assert text.count("mirred") == HEADER_SIZES * sum((dst, src) not in links for src, dst in links)


RING = parse_topology("ring:4")


def test_sizes_follow_the_rate_within_bounds() -> None:
    assert [wire_piece_bytes(bits) for bits in (10**6, 10**8, 10**9)] == [9000, 37_500, 65_536]
    assert wire_piece_bytes(10**8, at_switch=True) == 12_500
    assert [wire_queue_bytes(bits) for bits in (10**6, 10**7, 10**9)] == [2**21, 2_500_000, 2**24]


def test_facts_of_links_survive_as_text_and_tell_environments_apart() -> None:
    fabric = EmulatedFabric("up", "ring:4", RING.id, Fraction(50), 4, 0, 400, False, 1, 2, 7, 0.97)
    assert EmulatedFabric.from_line(fabric.to_line(), 1) == fabric
    assert fabric.facts() == {
        "network": "fabric", "fabric": "up", "link_mbps": 50.0, "links": "wire",
        "link_threads": 2, "mtu_bytes": 9000,
        "congestion_control": "reno",
    }  # fmt: skip


@pytest.mark.parametrize("spec", ["ring:4", "uniring:1,4", "hypercube:3", "bipartite:4", "switch:8,25", "a100:2"])
def test_regular_networks_are_busy_on_all_links(spec: str) -> None:
    plan = planned(spec)
    rates = fair_rates(plan, busy_streams(plan))
    carried = sum(rate * len(path_of(plan, stream)) for stream, rate in rates.items())
    assert carried == plan.bits_per_s


@given(strongly_connected_topologies(bandwidths=MIXED, switches=3))
def test_rates_are_max_min_fair(topology: Topology) -> None:
    plan = plan_fabric(topology, Fraction(10), "x")
    streams = busy_streams(plan)
    arcs = {arc: rate for cable in plan.cables for arc, rate in zip(cable.arcs, cable.bits_per_s, strict=True)}
    number = {arc: index for index, arc in enumerate(arcs)}
    routes = {index: tuple(number[arc] for arc in path_of(plan, stream)) for index, stream in enumerate(streams)}
    rates = fair_flows.fair_rates(routes, [Fraction(rate) for rate in arcs.values()])
    assert fair_rates(plan, streams) == {streams[index]: rate for index, rate in rates.items()}


def test_links_need_the_time_of_the_busiest_link_headers_included() -> None:
    plan = planned("ring:4")  # 10 Mbit/s
    assert needed_s(plan, {(0, 1): 1198}) == 1250 * 8 / 1e7
    assert needed_s(plan, {(0, 1): 2 * 8948}) == 18000 * 8 / 1e7
    over_one_link = {(0, 1): 1198, (0, 2): 1198}  # rank 0 reaches rank 2 by rank 1
    assert plan.routes[0][2] == 1
    assert needed_s(plan, over_one_link) == 2 * 1250 * 8 / 1e7
