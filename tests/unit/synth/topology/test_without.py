"""Failures: what goes, what stays, and under which name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.failures import LostLink, without
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.strategies import MIXED, strongly_connected_topologies


def named_links(topology: Topology) -> list[tuple[str, str]]:
    return [(topology.node_ids[link.src], topology.node_ids[link.dst]) for link in topology.links]


def test_a_node_takes_its_links_along_and_survivors_are_renumbered():
    topology = parse_topology("without(ring:5;node=1)")
    assert topology.node_ids == ("0", "1", "2", "3")
    assert sorted(named_links(topology)) == [("0", "3"), ("1", "2"), ("2", "1"), ("2", "3"), ("3", "0"), ("3", "2")]


def test_all_parallel_links_go():
    assert len(parse_topology("without(biring:6,4;link=0-1)").links) == 24 - 6
    assert len(parse_topology("without(biring:6,4;link=0>1)").links) == 24 - 3


def test_one_direction_may_be_all_there_is():
    both = parse_topology("without(circulant:5,1,2;link=0>1;link=1-0)")
    assert len(both.links) == 20 - 2


def test_a_part_of_a_link_may_be_lost():
    """One of 18 NVLinks of a GPU, while another GPU is lost altogether."""
    left = parse_topology("without(h100:1;node=0;link=0.1-nvswitch:0;part=1/18)")
    rates = {left.node_ids[link.src]: link.bandwidth for link in left.links if link.dst == left.compute_count}
    assert (left.compute_count, rates["0.1"], rates["0.2"]) == (7, 17 * 25, 18 * 25)
    for spec in ("without(h100:1;part=1/2)", "without(h100:1;link=0.1-nvswitch:0;part=1)"):
        with pytest.raises(InvalidInput, match=r"part .*must"):
            parse_topology(spec)


def test_names_refer_to_the_inner_network():
    once = parse_topology("without(complete:5;node=1;node=2)")
    twice = parse_topology("without(without(complete:5;node=1);node=1)")
    assert once.id == twice.id == parse_topology("complete:3").id


def test_known_symmetries_are_dropped():
    assert parse_topology("without(complete:5;node=1)").automorphisms == ()


def test_unused_bandwidths_are_forgotten():
    links = [Link(0, 1), Link(1, 0), Link(0, 2, MIXED[2]), Link(2, 0, MIXED[2]), Link(1, 2), Link(2, 1)]
    triangle = Topology("x", ("0", "1", "2"), 3, Links.build(links))
    rest = without(triangle, [], [LostLink("0", "2", one_way=False)], "y")
    assert rest.links.bandwidths == (1,)
    assert rest.id == parse_topology("mesh:3").id


def fabric() -> Topology:
    """Four GPUs on two leaf switches under two spines; the second spine hangs on a chain of two."""
    nodes = [NamedNode(f"gpu{i}", "compute") for i in range(4)]
    nodes += [NamedNode(name, "switch") for name in ("leaf:0", "leaf:1", "spine.0", "spine.1", "relay")]
    pairs = [("gpu0", "leaf:0"), ("gpu1", "leaf:0"), ("gpu2", "leaf:1"), ("gpu3", "leaf:1")]
    pairs += [("leaf:0", "spine.0"), ("leaf:1", "spine.0"), ("leaf:0", "spine.1"), ("spine.1", "relay")]
    pairs += [("relay", "leaf:1")]
    return assemble_topology("fabric", "link", nodes, [NamedLink(a, b, 1, bidirectional=True) for a, b in pairs])


def test_switches_with_fewer_than_two_neighbours_go_repeatedly():
    rest = without(fabric(), [], [LostLink("relay", "leaf:1", one_way=False)], "x")
    assert rest.node_ids == ("gpu0", "gpu1", "gpu2", "gpu3", "leaf:0", "leaf:1", "spine.0")
    assert len(rest.links) == 12


def test_a_switch_with_two_links_to_one_neighbour_goes():
    links = [NamedLink("a", "b", 1, bidirectional=True), NamedLink("a", "s", 1, bidirectional=True)]
    nodes = [NamedNode("a", "compute"), NamedNode("b", "compute"), NamedNode("s", "switch")]
    doubled = assemble_topology("x", "link", nodes, [*links, links[1], NamedLink("b", "s", 1, bidirectional=True)])
    assert without(doubled, [], [LostLink("b", "s", one_way=False)], "y").node_ids == ("a", "b")


def test_a_switch_can_be_removed_and_named_nodes_keep_their_names():
    rest = without(fabric(), ["spine.0", "gpu1"], [], "x")
    assert rest.node_ids == ("gpu0", "gpu2", "gpu3", "leaf:0", "leaf:1", "spine.1", "relay")
    assert rest.compute_count == 3


def test_rank_and_id_name_the_same_node():
    assert without(fabric(), ["1"], [], "x").id == without(fabric(), ["gpu1"], [], "x").id


def test_a_number_that_means_two_nodes_is_refused():
    swapped = Topology("x", ("1", "0", "2"), 3, parse_topology("complete:3").links)
    with pytest.raises(InvalidInput, match="rank of one node and the id of another"):
        without(swapped, ["1"], [], "y")
    assert without(swapped, ["2"], [], "y").node_ids == ("1", "0")


@given(strongly_connected_topologies(min_nodes=4, bandwidths=MIXED), st.data())
def test_against_the_definition(topology, data):
    count = topology.compute_count
    nodes = data.draw(st.sets(st.integers(0, count - 1), max_size=count - 2))
    lost = [topology.links[link] for link in data.draw(st.sets(st.integers(0, len(topology.links) - 1)))]
    one_way = data.draw(st.booleans())
    names = [LostLink(str(link.src), str(link.dst), one_way) for link in lost]
    rest = without(topology, map(str, nodes), names, "x")
    survivors = [node for node in range(count) if node not in nodes]
    gone = {(link.src, link.dst) for link in lost} | {(link.dst, link.src) for link in lost if not one_way}
    expected = [
        Link(survivors.index(link.src), survivors.index(link.dst), link.bandwidth, link.latency_s)
        for link in topology.links
        if link.src in survivors and link.dst in survivors and (link.src, link.dst) not in gone
    ]
    assert list(rest.links) == expected
    ids = tuple(map(str, range(len(survivors))))
    assert rest.id == Topology("y", ids, len(survivors), Links.build(expected)).id
