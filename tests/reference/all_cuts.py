"""Bounds by trying every set of nodes: slow, obvious, for small networks."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

from synth.topology.topology import Topology


def node_sets(topology: Topology) -> Iterator[set[int]]:
    """Yield every set of nodes that holds some rank but not every rank."""
    nodes = range(topology.node_count)
    for size in range(1, topology.node_count):
        for chosen in combinations(nodes, size):
            inside = set(chosen)
            if 0 < len([node for node in inside if node < topology.compute_count]) < topology.compute_count:
                yield inside


def bandwidth_into(topology: Topology, inside: set[int]) -> Fraction:
    return sum(
        (link.bandwidth for link in topology.links if link.dst in inside and link.src not in inside), Fraction(0)
    )


def bandwidth_out_of(topology: Topology, inside: set[int]) -> Fraction:
    return sum(
        (link.bandwidth for link in topology.links if link.src in inside and link.dst not in inside), Fraction(0)
    )


def allgather_optimum(topology: Topology) -> Fraction:
    ranks = topology.compute_count
    return max(
        Fraction(ranks - len([node for node in inside if node < ranks]), ranks) / bandwidth_into(topology, inside)
        for inside in node_sets(topology)
    )


def reduce_scatter_optimum(topology: Topology) -> Fraction:
    ranks = topology.compute_count
    return max(
        Fraction(ranks - len([node for node in inside if node < ranks]), ranks) / bandwidth_out_of(topology, inside)
        for inside in node_sets(topology)
    )


def allreduce_crossing(topology: Topology) -> Fraction:
    """Return the largest bound of theorem 16: the whole vector crosses every cut."""
    return max(1 / bandwidth_into(topology, inside) for inside in node_sets(topology))
