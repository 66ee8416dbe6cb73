"""Expansions of any network are right and send nothing twice, whatever its degrees and bandwidths."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.collective import REDUCE_SCATTER
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.catalog import synthesize_unverified
from chorale.synth.methods.expand.schedules import (
    bidirectional_schedule,
    degree_schedule,
    line_schedule,
    power_schedule,
)
from chorale.synth.schedule.transforms import renamed_schedule
from chorale.synth.topology.expansions import bidirectional, cartesian_product, degree_expansion, line_graph
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import transpose
from chorale.synth.verify.verify import verify
from tests.properties import random_cases
from tests.strategies import MIXED, strongly_connected_topologies
from tests.unit.synth.methods.expand.networks import (
    SERIAL,
    Send,
    breadth_first,
    network_of,
    regular_networks,
    sends,
)

ANY_DEGREE = strongly_connected_topologies(2, 5, max_extra_links=6)
UNEQUAL_LINKS = strongly_connected_topologies(2, 4, max_extra_links=4, bandwidths=MIXED)


@random_cases(50)
@given(st.one_of(regular_networks(4, loops=False), ANY_DEGREE), st.integers(1, 3))
def test_expansions_verify_and_deliver_nothing_twice(network, count):
    base = breadth_first(network)
    times = min(count, 2) if network.node_count > 3 else count
    for expanded in (
        line_schedule(base, line_graph(network, "line")),
        degree_schedule(base, count, degree_expansion(network, count, "degree")),
        power_schedule(base, times, cartesian_product([network] * times, "power")),
        bidirectional_schedule(base, breadth_first(transpose(network)), bidirectional(network, "both")),
    ):
        assert verify(expanded).link_loads.duplicate_deliveries == 0


@random_cases(50)
@given(st.data(), st.one_of(ANY_DEGREE, UNEQUAL_LINKS))
def test_other_names_of_the_nodes(data, network):
    base = breadth_first(network)
    names = data.draw(st.permutations(range(network.node_count)))
    links = [link._replace(src=names[link.src], dst=names[link.dst]) for link in network.links]
    moved = renamed_schedule(base, np.array(names), network_of(network.node_count, links))
    expected = {
        Send(send.step, names[send.src], names[send.dst], names[send.shard], send.chunk): count
        for send, count in sends(base).items()
    }
    assert sends(moved) == expected
    assert verify(moved).cost == verify(base).cost


@given(UNEQUAL_LINKS, st.integers(2, 3))
def test_unequal_parallel_links_keep_their_loads(network, count):
    base = breadth_first(network)
    nodes, before = network.node_count, verify(base).cost.time_per_byte
    power = power_schedule(base, count, cartesian_product([network] * count, "power"))
    in_all = Fraction(nodes**count - 1, nodes - 1)
    assert verify(power).cost.time_per_byte == before * nodes * in_all / (count * nodes**count)
    degree = degree_schedule(base, count, degree_expansion(network, count, "degree"))
    fan_in = np.bincount(network.links.dst)
    last = max(Fraction(count - 1, count * int(fan_in[link.dst])) / link.bandwidth for link in network.links)
    assert verify(degree).cost.time_per_byte == (before * nodes + last) / (count * nodes)


def test_only_allgathers_are_expanded():
    topology = parse_topology("ring:4")
    scatter = synthesize_unverified("bfb", topology, REDUCE_SCATTER, None, SERIAL)
    with pytest.raises(InvalidInput, match="only stepped allgathers over direct links can be expanded, not a"):
        line_schedule(scatter, parse_topology("line(ring:4)"))
