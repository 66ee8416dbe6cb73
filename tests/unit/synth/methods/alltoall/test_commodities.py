"""Sources and links up to the symmetries that a topology carries."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from hypothesis import given

from chorale.synth.methods.alltoall.linear_program import commodities_of
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.topology import Topology
from tests.strategies import MIXED, strongly_connected_topologies


@given(strongly_connected_topologies(2, 6, bandwidths=MIXED, switches=2))
def test_without_symmetries_everything_is_there(topology):
    problem = commodities_of(topology)
    assert problem.sources.tolist() == list(range(topology.compute_count))
    assert problem.weights.tolist() == [1] * topology.compute_count
    assert problem.demand.tolist() == [[1] * topology.compute_count + [0] * topology.switch_count]
    for index, link_id in enumerate(problem.link_ids):
        link = topology.links[int(link_id)]
        assert (link.src, link.dst) == (problem.src[index], problem.dst[index])
        group = problem.link_class[index]
        assert problem.class_size[group] == 1
        assert Fraction(int(problem.class_capacity[group]), problem.scale) == link.bandwidth
    for node in range(topology.node_count):
        leaving = problem.outgoing_links[problem.outgoing[node] : problem.outgoing[node + 1]]
        assert sorted(leaving) == np.flatnonzero(problem.src == node).tolist()
        arriving = range(problem.incoming[node], problem.incoming[node + 1])
        assert list(arriving) == np.flatnonzero(problem.dst == node).tolist()


def test_orbits_of_parallel_links_of_different_bandwidth_stay_apart():
    links = [Link(u, (u + 1) % 3, Fraction(bandwidth)) for u in range(3) for bandwidth in (1, 2)]
    turn = np.array([1, 2, 0], dtype=np.int32)
    topology = Topology("test", ("0", "1", "2"), 3, Links.build(links), automorphisms=(turn,))
    problem = commodities_of(topology)
    assert problem.sources.tolist() == [0]
    assert problem.class_size.tolist() == [3, 3]
    assert sorted(problem.class_capacity.tolist()) == [1, 2]


def test_a_false_symmetry_is_not_used():
    links = Links.build([Link(0, 1), Link(1, 2), Link(2, 0), Link(0, 2)])
    turn = np.array([1, 2, 0], dtype=np.int32)
    topology = Topology("test", ("0", "1", "2"), 3, links, automorphisms=(turn,))
    assert len(commodities_of(topology).sources) == 3


def test_symmetries_that_leave_several_orbits():
    """A path of three nodes, mirrored: the ends are alike, the middle is not."""
    links = Links.build([Link(0, 1), Link(1, 0), Link(1, 2), Link(2, 1)])
    mirror = np.array([2, 1, 0], dtype=np.int32)
    plain = Topology("test", ("0", "1", "2"), 3, links)
    problem = commodities_of(replace(plain, automorphisms=(mirror,)))
    assert problem.sources.tolist() == [0, 1]
    assert problem.weights.tolist() == [2, 1]
    assert problem.class_size.tolist() == [2, 2]
