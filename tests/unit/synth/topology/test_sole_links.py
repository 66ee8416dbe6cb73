"""The link that all shortest paths share, against a search of every path, and what it proves about schedules."""

from fractions import Fraction

import numpy as np
import pytest

from chorale.synth.collective import parse_collective
from chorale.synth.executor.base import SerialExecutor
from chorale.synth.methods.bfb.bfb import breadth_first_floor
from chorale.synth.methods.catalog import synthesize
from chorale.synth.topology.distance import distances_from, distances_to, sole_links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology

SPECS = ("mesh:3x4", "ring:5", "uniring:2,4", "genkautz:2,7", "switch:3,100", "hxmesh:1,2x2", "torus:4x2")
IRREGULAR = (
    "scaled(mesh:3x4;link=0-1;factor=1/3)",
    "mesh:2x5",
    "without(torus:4x4;link=0-1)",
    "without(hypercube:4;node=3)",
)


def first_links(topology: Topology, hops, target: int, node: int) -> list[int]:
    ends = zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)
    return [link for link, (src, dst) in enumerate(ends) if src == node and hops[target, dst] + 1 == hops[target, node]]


@pytest.mark.parametrize("spec", SPECS)
def test_the_only_way_out_is_found(spec: str):
    topology = parse_topology(spec)
    hops = distances_to(topology, np.arange(topology.compute_count))
    found = sole_links(hops, topology.links.src, topology.links.dst)
    for target, node in np.ndindex(*hops.shape):
        ways = first_links(topology, hops, target, node)
        assert found[target, node] == (ways[0] if len(ways) == 1 else -1)


@pytest.mark.parametrize("spec", SPECS)
def test_the_only_way_in_is_the_way_out_with_all_links_reversed(spec: str):
    topology = parse_topology(spec)
    hops = distances_from(topology, np.arange(topology.node_count))
    found = sole_links(hops, topology.links.dst, topology.links.src)
    for source, node in np.argwhere(found >= 0).tolist():
        link = found[source, node]
        assert topology.links.dst[link] == node
        assert hops[source, topology.links.src[link]] + 1 == hops[source, node]


@pytest.mark.parametrize("collective", ["allgather", "reduce_scatter"])
@pytest.mark.parametrize("spec", IRREGULAR)
def test_breadth_first_broadcast_keeps_its_floor(spec: str, collective: str):
    topology, wanted = parse_topology(spec), parse_collective(collective)
    floor = breadth_first_floor(topology, wanted.name)
    made = synthesize("bfb", topology, wanted, None, SerialExecutor())
    assert floor is not None
    assert 0 < floor <= made.cost.time_per_byte


def test_a_narrow_link_without_another_way_raises_the_floor():
    """The three others of its row reach rank 0 over the link of 1/3, one a step, before the last three over both."""
    topology = parse_topology(IRREGULAR[0])
    assert (
        breadth_first_floor(topology, parse_collective("allgather").name)
        == (3 + 3 + 3 + Fraction(2 + 1) / Fraction(4, 3)) / 12
    )
