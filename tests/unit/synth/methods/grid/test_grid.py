"""The grid of ranks as the spec tells it."""

import pytest

from chorale.synth.methods.grid.lines import grid_shape
from chorale.synth.topology.links import Link, Links
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("torus:4x3x2", (4, 3, 2)),
        ("torus:16", (16,)),
        ("mesh:3x5", (3, 5)),
        ("hypercube:3", (2, 2, 2)),
        ("hyperx:4x6", (4, 6)),
        ("hamming:3,4", (4, 4, 4)),
        ("hxmesh:2,3x4", (6, 8)),
        ("ring:9", (9,)),
        ("complete:6", (6,)),
        ("without(torus:4x4;link=0-1)", (4, 4)),
        ("scaled(torus:4x4;link=0-1;factor=1/2)", (4, 4)),
        ("without(torus:4x4;node=3)", (15,)),
        ("power(ring:4;2)", (16,)),
        ("line(bipartite:4)", (32,)),
    ],
)
def test_shapes(spec, shape):
    assert grid_shape(parse_topology(spec)) == shape


@pytest.mark.parametrize("name", ["a network", "file:torus.json", "", "torus"])
def test_networks_without_a_spec_are_lines(name):
    topology = Topology(name, ("0", "1"), 2, Links.build([Link(0, 1), Link(1, 0)]))
    assert grid_shape(topology) == (2,)
