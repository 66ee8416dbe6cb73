"""Products of complete graphs: Hamming graphs and HyperX."""

from __future__ import annotations

import math

import numpy as np

from chorale.synth.topology.families.unit import Arcs, unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import MAX_NODES, Topology

_MAX_DIMENSIONS = MAX_NODES.bit_length() - 1


def plan_hamming(call: FamilyCall) -> TopologyPlan:
    """Hamming graph H(n, q): words of n letters out of q, linked where they differ in one letter, both ways.

    n >= 1, q >= 2; q^n nodes in lexicographic order, degree n (q - 1), diameter n, distance-regular,
    reverse-symmetric. BFB is bandwidth-optimal; H(2, q) is Moore-optimal too.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    n, q = fixed_numbers(call, "hamming:n,q", 2)
    require(n >= 1, "hamming:n,q must have words of n >= 1 letters", call, "use hamming:1,q")
    require(q >= 2, "hamming:n,q must have q >= 2 letters", call, "use hamming:n,2")
    require(n <= _MAX_DIMENSIONS, f"hamming:n,q must have n <= {_MAX_DIMENSIONS}", call, "choose a smaller network")
    return _plan(call, [q] * n)


def plan_hyperx(call: FamilyCall) -> TopologyPlan:
    """HyperX A x B x …: a link to every node that differs in one coordinate, both ways.

    Every size >= 2; the product of the sizes is the number of nodes; degree the sum of size - 1, diameter the number
    of dimensions, reverse-symmetric. BFB is bandwidth-optimal (theorem 13: a product of optimal simple graphs).
    Source: Ahn et al., "HyperX: topology, routing, and packaging of efficient large-scale networks", 2009, here with
    one node per router and the routers taken for the nodes.
    """
    sizes = whole_numbers(call, "hyperx:AxB", separator="x")
    require(min(sizes) >= 2, "every dimension of hyperx must be >= 2", call, "leave out dimensions of 1")
    rule = f"hyperx must have at most {_MAX_DIMENSIONS} dimensions"
    require(len(sizes) <= _MAX_DIMENSIONS, rule, call, "choose a smaller network")
    return _plan(call, sizes)


def _plan(call: FamilyCall, sizes: list[int]) -> TopologyPlan:
    nodes = math.prod(sizes)
    return TopologyPlan(str(call), nodes, nodes * sum(size - 1 for size in sizes), lambda: _build(str(call), sizes))


def _build(spec: str, sizes: list[int]) -> Topology:
    rank = np.arange(math.prod(sizes)).reshape(sizes)
    arcs: list[Arcs] = []
    for axis, size in enumerate(sizes):
        arcs += [(rank.ravel(), np.roll(rank, -shift, axis).ravel()) for shift in range(1, size)]
    turns = [np.roll(rank, -1, axis).ravel() for axis in range(len(sizes))]
    return unit_topology(spec, rank.size, arcs, turns)


HAMMING_FAMILIES = (
    Family("hamming", "hamming:n,q", "hamming:2,3", "words of n letters out of q, differing in one", plan_hamming),
    Family("hyperx", "hyperx:AxB", "hyperx:4x4", "complete graph along every dimension of a grid", plan_hyperx),
)
