"""Networks that others build, to compare with: shifted rings and the double binary tree."""

from __future__ import annotations

import math

import numpy as np

from chorale.synth.topology.families.unit import NodeColumn, bidirectional_arcs, unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import Topology


def plan_shiftedring(call: FamilyCall) -> TopologyPlan:
    """Two superposed bidirectional rings: 0, 1, 2, … and 0, s, 2 s, … modulo m.

    s is the largest stride below m / 2 without a common factor with m, so that the second ring visits every node
    too (for s = 1 the links are parallel). m >= 3 nodes, degree 4, reverse-symmetric. Each ring carries half of the
    data; any of its schedules that is bandwidth-optimal on a ring is so here.

    The paper does not say how its second ring runs. With s = m / 2 - 1 at m = 1024 the all-to-all rate gives
    the time that it prints (10738 us); other strides do not.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 8.2.
    """
    (m,) = fixed_numbers(call, "shiftedring:m", 1)
    require(m >= 3, "shiftedring:m must have m >= 3 nodes", call, "use uniring:4,2 for a pair of nodes")
    return TopologyPlan(str(call), m, 4 * m, lambda: _shiftedring(str(call), m))


def plan_dbt(call: FamilyCall) -> TopologyPlan:
    """Double binary tree: the links, both ways, of two binary trees in which no node is inner twice.

    In the first tree, node 0 is the root; every other node hangs, in order, below the node that differs in the lowest
    bit set, so that odd nodes are leaves. The second is its mirror image (m even) or its shift by one (m odd).
    m >= 2 nodes, degree at most 4 and not regular, diameter below 2 log2 m + 2, reverse-symmetric. Each tree carries
    half of the data.
    Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
    """
    (m,) = fixed_numbers(call, "dbt:m", 1)
    require(m >= 2, "dbt:m must have m >= 2 nodes", call, "use dbt:2")
    return TopologyPlan(str(call), m, 4 * (m - 1), lambda: _dbt(str(call), m))


def shifted_stride(m: int) -> int:
    """Return the stride of the second ring of shiftedring:m."""
    return next(stride for stride in range((m - 1) // 2, 0, -1) if math.gcd(stride, m) == 1)


def _shiftedring(spec: str, m: int) -> Topology:
    node = np.arange(m)
    arcs = [*bidirectional_arcs(node, (node + 1) % m), *bidirectional_arcs(node, (node + shifted_stride(m)) % m)]
    return unit_topology(spec, m, arcs, [(node + 1) % m])


def double_tree_parents(m: int) -> tuple[NodeColumn, NodeColumn]:
    """Return int64[m] for each tree of dbt:m: the parent of each node, -1 for the root."""
    child = np.arange(1, m)
    lowest_bit = child & -child
    upper = (child ^ lowest_bit) | (lowest_bit << 1)
    first = np.concatenate([[-1], np.where(upper < m, upper, child ^ lowest_bit)])
    other = m - 1 - np.arange(m) if m % 2 == 0 else (np.arange(m) + 1) % m  # the same tree with other names
    second = np.full(m, -1)
    second[other[1:]] = other[first[1:]]
    return first, second


def _dbt(spec: str, m: int) -> Topology:
    child = np.arange(m)
    arcs = [bidirectional_arcs(child[parent >= 0], parent[parent >= 0]) for parent in double_tree_parents(m)]
    return unit_topology(spec, m, [*arcs[0], *arcs[1]])


BASELINE_FAMILIES = (
    Family(
        "shiftedring", "shiftedring:m", "shiftedring:8", "two superposed rings, the second shifted", plan_shiftedring
    ),
    Family("dbt", "dbt:m", "dbt:8", "double binary tree, not regular", plan_dbt),
)
