"""Small vertex-transitive networks, with equal and unequal links."""

from fractions import Fraction

import numpy as np

from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Link, Links, Topology

SPECS = (
    "torus:4x3", "torus:5x5", "torus:2x2x3", "hypercube:4", "hamming:3,3", "complete:5", "bipartite:3", "ring:7",
    "circulant:16,3,4", "circulant:15,1,4,5", "dicirculant:3", "uniring:2,6", "biring:4,6", "distreg:4,10",
)  # fmt: skip


def unequal_torus() -> Topology:
    """A 4 x 5 torus: rows fast with a slower parallel link, columns slow, latencies by direction."""
    links = []
    for row in range(4):
        for column in range(5):
            node = 5 * row + column
            for step, latency_s in ((1, Fraction(1, 1000)), (4, Fraction(0))):
                target = 5 * row + (column + step) % 5
                links += [Link(node, target, Fraction(3), latency_s), Link(node, target, Fraction(3, 2))]
            links += [Link(node, 5 * ((row + step) % 4) + column, Fraction(2)) for step in (1, 3)]
    nodes = np.arange(20, dtype=np.int32).reshape(4, 5)
    symmetries = tuple(np.roll(nodes, -1, axis=axis).ravel() for axis in (0, 1))
    names = tuple(str(node) for node in range(20))
    return Topology("unequal", names, 20, Links.build(links), automorphisms=symmetries)


def symmetric_networks() -> list[Topology]:
    return [*map(parse_topology, SPECS), unequal_torus()]
