"""Grids: torus, mesh and hypercube."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.unit import Arcs, bidirectional_arcs, unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import MAX_NODES, Topology

_MAX_DIMENSIONS = MAX_NODES.bit_length() - 1


def plan_torus(call: FamilyCall) -> TopologyPlan:
    """Torus A x B x …: neighbours at distance 1 in one dimension, modulo its size, both ways.

    Every size >= 2; a dimension of 2 is one pair of links. Product of the sizes is the number of nodes; degree
    2 per dimension (1 for a size of 2), diameter the sum of floor(size / 2), reverse-symmetric. BFB is
    bandwidth-optimal, also when the sizes differ.
    """
    sizes = _sizes(call)
    nodes = math.prod(sizes)
    links = nodes * sum(1 if size == 2 else 2 for size in sizes)
    return TopologyPlan(str(call), nodes, links, lambda: _torus(str(call), sizes))


def plan_mesh(call: FamilyCall) -> TopologyPlan:
    """Mesh A x B x …: a torus without the links that wrap around.

    Every size >= 2; diameter the sum of size - 1; not regular unless all sizes are 2; reverse-symmetric.
    """
    sizes = _sizes(call)
    nodes = math.prod(sizes)
    links = sum(2 * (size - 1) * (nodes // size) for size in sizes)
    return TopologyPlan(str(call), nodes, links, lambda: _mesh(str(call), sizes))


def plan_hypercube(call: FamilyCall) -> TopologyPlan:
    """Hypercube of dimension n: ranks that differ in one bit are neighbours.

    2^n nodes, degree n, diameter n, reverse-symmetric. BFB is bandwidth-optimal.
    """
    (n,) = fixed_numbers(call, "hypercube:n", 1)
    require(n >= 1, "hypercube:n must have n >= 1", call, "use hypercube:1 for a pair of nodes")
    require(n <= _MAX_DIMENSIONS, f"hypercube:n must have n <= {_MAX_DIMENSIONS}", call, "choose a smaller network")
    return TopologyPlan(str(call), 2**n, n * 2**n, lambda: _hypercube(str(call), n))


def _sizes(call: FamilyCall) -> list[int]:
    syntax = f"{call.name}:AxBx…"
    sizes = whole_numbers(call, syntax, separator="x")
    require(min(sizes) >= 2, f"every dimension of {call.name} must be >= 2", call, "leave out dimensions of 1")
    rule = f"{call.name} must have at most {_MAX_DIMENSIONS} dimensions"
    require(len(sizes) <= _MAX_DIMENSIONS, rule, call, "choose a smaller network")
    return sizes


def _grid(sizes: list[int]) -> NDArray[np.int64]:
    """Return the ranks as an array of shape `sizes`: mixed radix, the last dimension fastest."""
    return np.arange(math.prod(sizes)).reshape(sizes)


def _torus(spec: str, sizes: list[int]) -> Topology:
    rank = _grid(sizes)
    arcs: list[Arcs] = []
    generators = []
    for axis, size in enumerate(sizes):
        following = np.roll(rank, -1, axis).ravel()
        arcs += [(rank.ravel(), following)] if size == 2 else bidirectional_arcs(rank.ravel(), following)
        generators.append(following)
    return unit_topology(spec, rank.size, arcs, generators)


def _mesh(spec: str, sizes: list[int]) -> Topology:
    rank = _grid(sizes)
    arcs: list[Arcs] = []
    for axis, size in enumerate(sizes):
        lower = np.take(rank, np.arange(size - 1), axis).ravel()
        upper = np.take(rank, np.arange(1, size), axis).ravel()
        arcs += bidirectional_arcs(lower, upper)
    return unit_topology(spec, rank.size, arcs)


def _hypercube(spec: str, n: int) -> Topology:
    node = np.arange(2**n)
    flips = [node ^ (1 << bit) for bit in range(n)]
    return unit_topology(spec, 2**n, [(node, flip) for flip in flips], flips)


GRID_FAMILIES = (
    Family("torus", "torus:AxBx…", "torus:4x4x2", "wrap-around grid, every dimension >= 2", plan_torus),
    Family("mesh", "mesh:AxBx…", "mesh:4x4", "grid without wrap-around links", plan_mesh),
    Family("hypercube", "hypercube:n", "hypercube:3", "2^n nodes, neighbours differ in one bit", plan_hypercube),
)
