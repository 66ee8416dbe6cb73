"""Networks with failures, and with slower and faster links."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.failures import LostLink, scaled, single_failures, without
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from tests.links import both_directions, links_of
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


@given(strongly_connected_topologies(bandwidths=MIXED, switches=1), st.data())
def test_definition(topology, data):
    chosen = [topology.links[i] for i in data.draw(st.sets(st.integers(0, len(topology.links) - 1), min_size=1))]
    one_way = data.draw(st.booleans())
    factor = data.draw(st.sampled_from(MIXED))
    ids = topology.node_ids
    pairs = [LostLink(ids[link.src], ids[link.dst], one_way) for link in chosen]
    hit = {(link.src, link.dst) for link in chosen}
    if not one_way:
        hit |= {(dst, src) for src, dst in hit}
    expected = Links.build(
        link._replace(bandwidth=link.bandwidth * factor) if (link.src, link.dst) in hit else link
        for link in topology.links
    )
    found = scaled(topology, pairs, factor, "scaled(random)")
    assert list(found.links) == list(expected)
    assert found.links.bandwidths == expected.bandwidths
    assert found.automorphisms == ()


def test_a_link_that_is_named_twice_is_scaled_once():
    twice = parse_topology("scaled(ring:4;link=0-1;link=1-0;link=0>1;factor=1/3)")
    assert twice.id == parse_topology("scaled(ring:4;link=0-1;factor=1/3)").id
    assert Counter(link.bandwidth for link in twice.links) == {Fraction(1): 6, Fraction(1, 3): 2}


def test_scaling_there_and_back_gives_the_same_network():
    assert (
        parse_topology("scaled(scaled(torus:3x3;link=0-1;factor=1/2);link=0-1;factor=2)").id
        == parse_topology("torus:3x3").id
    )


def test_several_factors_go_with_the_links_before_them():
    together = parse_topology("scaled(ring:5;link=0-1;link=1>2;factor=1/3;link=3-4;factor=5/2)")
    nested = parse_topology("scaled(scaled(ring:5;link=0-1;link=1>2;factor=1/3);link=3-4;factor=5/2)")
    assert together.id == nested.id
    assert Counter(link.bandwidth for link in together.links) == {
        Fraction(1): 5,
        Fraction(1, 3): 3,
        Fraction(5, 2): 2,
    }


def test_a_link_with_two_factors_is_multiplied_by_both():
    assert (
        parse_topology("scaled(ring:4;link=0-1;factor=2/3;link=0-1;factor=3/4)").id
        == parse_topology("scaled(ring:4;link=0-1;factor=1/2)").id
    )


def test_a_single_factor_may_stand_anywhere():
    assert (
        parse_topology("scaled(ring:4;factor=1/2;link=0-1)").id
        == parse_topology("scaled(ring:4;link=0-1;factor=1/2)").id
    )


def test_fabrics_with_slow_parts():
    slow = parse_topology("scaled(a100:2;link=0.3-nic:0.3;link=nic:0.3-ib:1;factor=1/5;link=1.0>nvswitch:1;factor=1/2)")
    ids = slow.node_ids
    changed = {(ids[link.src], ids[link.dst]): link.bandwidth for link in slow.links if link.bandwidth not in (25, 300)}
    infiniband = {("0.3", "nic:0.3"), ("nic:0.3", "0.3"), ("nic:0.3", "ib:1"), ("ib:1", "nic:0.3")}
    assert changed == {**dict.fromkeys(infiniband, Fraction(5)), ("1.0", "nvswitch:1"): Fraction(150)}


def failures(spec: str) -> list[tuple[str, int]]:
    return [(str(failure), failure.copies) for failure in single_failures(parse_topology(spec))]


def test_a_ring_has_one_failure_of_each_kind():
    assert failures("ring:5") == [("node=0", 5), ("link=0-1", 5)]


def test_failures_of_a_fabric_without_known_symmetries_are_all_listed():
    found = failures("mesh:2x3")
    assert [name for name, _ in found[:6]] == [f"node={rank}" for rank in range(6)]
    assert len(found) == 6 + 7
    assert {copies for _, copies in found} == {1}


@pytest.mark.parametrize("spec", ["a100:2", "mi250:2", "fattree:4", "torus:3x4", "hypercube:3", "uniring:1,4"])
def test_copies_add_up_to_all_nodes_and_links(spec):
    topology = parse_topology(spec)
    found = list(single_failures(topology))
    pairs = {tuple(sorted(pair)) for pair in links_of(topology)}
    assert sum(failure.copies for failure in found if failure.kind == "node") == topology.compute_count
    assert sum(failure.copies for failure in found if failure.kind == "link") == len(pairs)


def test_survivors_are_what_their_spec_says():
    topology = parse_topology("a100:2")
    for failure in single_failures(topology):
        assert failure.survivor(topology).id == parse_topology(failure.spec(topology)).id


def test_equal_failures_leave_equal_degrees():
    """An orbit is only an orbit if all its members leave the same number of links."""
    topology = parse_topology("a100:2")
    lost = {failure.names: len(failure.survivor(topology).links) for failure in single_failures(topology)}
    first_gpu = topology.node_ids[0]
    assert lost[(first_gpu,)] == len(parse_topology("without(a100:2;node=9)").links)


def test_a_failure_that_leaves_too_little_is_refused():
    topology = parse_topology("complete:2")
    node = next(single_failures(topology))
    assert links_of(topology) == both_directions([(0, 1)])
    with pytest.raises(InvalidInput, match="two compute nodes"):
        node.survivor(topology)


def test_a_failure_that_cuts_the_fabric_in_two_is_refused():
    topology = parse_topology("uniring:1,4")
    for failure in single_failures(topology):
        with pytest.raises(InvalidInput, match="path"):
            failure.survivor(topology)
