"""The transpose turns every link around, and twice is nothing."""

import numpy as np
from hypothesis import given

from chorale.synth.topology.automorphism import is_automorphism
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import transpose, transpose_with_links
from tests.strategies import MIXED, regular_topologies, strongly_connected_topologies

networks = strongly_connected_topologies(bandwidths=MIXED, latencies_s=MIXED[:2], switches=2)


@given(networks)
def test_every_link_is_turned_around(topology):
    turned, origin = transpose_with_links(topology)
    assert sorted(origin.tolist()) == list(range(len(topology.links)))
    for new, old in enumerate(origin):
        link, original = turned.links[new], topology.links[int(old)]
        assert (link.src, link.dst) == (original.dst, original.src)
        assert (link.bandwidth, link.latency_s) == (original.bandwidth, original.latency_s)
    assert turned.spec == f"transpose({topology.spec})"


@given(networks)
def test_twice_is_the_same_network(topology):
    turned, there = transpose_with_links(topology)
    again, back = transpose_with_links(turned)
    assert again.id == topology.id
    assert np.array_equal(there[back], np.arange(len(topology.links)))


@given(networks)
def test_links_stay_in_canonical_order(topology):
    links = list(transpose(topology).links)
    assert links == sorted(links, key=lambda link: (link.dst, link.src, -link.bandwidth, link.latency_s))


@given(regular_topologies())
def test_symmetries_stay_symmetries(spec):
    turned = parse_topology(f"transpose({spec})")
    assert turned.automorphisms
    assert all(is_automorphism(turned, generator) for generator in turned.automorphisms)
