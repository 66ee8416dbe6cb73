"""Slower and faster links."""

from collections import Counter
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.topology.failures import LostLink, scaled
from chorale.synth.topology.links import Links
from chorale.synth.topology.spec import parse_topology
from tests.strategies import MIXED, strongly_connected_topologies


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
