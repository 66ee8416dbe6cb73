"""Rings and circulants, and two networks of other work as baselines: shifted rings and the double binary tree."""

from __future__ import annotations

import math

import numpy as np

from chorale.synth.topology.families.builders import Arcs, NodeColumn, bidirectional_arcs, unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import Topology


def plan_ring(call: FamilyCall) -> TopologyPlan:
    """Bidirectional ring: links i to i + 1 and i - 1 modulo m.

    m >= 3 nodes, 2 m links, degree 2, diameter floor(m / 2), reverse-symmetric. BFB is bandwidth-optimal on it.
    """
    (m,) = fixed_numbers(call, "ring:m", 1)
    require(m >= 3, "ring:m must have m >= 3 nodes", call, "use complete:2 for a pair of nodes")
    return TopologyPlan(str(call), m, 2 * m, lambda: _parallel_ring(str(call), m, forward=1, backward=1))


def plan_biring(call: FamilyCall) -> TopologyPlan:
    """BiRing(d, m): every node has d / 2 parallel links to each neighbour on the ring.

    m >= 3 nodes, d m links, degree d (even), diameter floor(m / 2), reverse-symmetric. BFB is bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, m = fixed_numbers(call, "biring:d,m", 2)
    require(d >= 2 and d % 2 == 0, "biring:d,m must have an even degree d >= 2", call, "use biring:2,m or uniring:d,m")
    require(m >= 3, "biring:d,m must have m >= 3 nodes", call, "use uniring:d,2 for a pair of nodes")
    return TopologyPlan(str(call), m, d * m, lambda: _parallel_ring(str(call), m, forward=d // 2, backward=d // 2))


def plan_uniring(call: FamilyCall) -> TopologyPlan:
    """UniRing(d, m): every node has d parallel links to the next on the ring.

    m >= 2 nodes, d m links, degree d, diameter m - 1, reverse-symmetric. BFB is bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, m = fixed_numbers(call, "uniring:d,m", 2)
    require(d >= 1, "uniring:d,m must have a degree d >= 1", call, "use uniring:1,m")
    require(m >= 2, "uniring:d,m must have m >= 2 nodes", call, "use uniring:d,2 for a pair of nodes")
    return TopologyPlan(str(call), m, d * m, lambda: _parallel_ring(str(call), m, forward=d, backward=0))


def plan_circulant(call: FamilyCall) -> TopologyPlan:
    """Circulant C(n, {a1, a2, …}): links i to i + a and i - a modulo n for every offset a.

    n nodes, degree 2 per offset (1 for the offset n / 2), reverse-symmetric. BFB is bandwidth-optimal for two
    offsets; C(n, {m, m + 1}) with m near sqrt(n / 2) has diameter about sqrt(n / 2). With three or more offsets
    it is not always optimal, for example C(15, {1, 4, 5}).
    """
    n, *offsets = whole_numbers(call, "circulant:n,a1,a2,…")
    way_out = "write circulant:n,a1,a2,… such as circulant:16,3,4"
    require(n >= 2, "circulant must have n >= 2 nodes", call, way_out)
    require(bool(offsets), "circulant must have at least one offset", call, way_out)
    require(all(1 <= a < n for a in offsets), "every offset of a circulant must lie between 1 and n - 1", call, way_out)
    classes = {min(a, n - a) for a in offsets}
    require(len(classes) == len(offsets), "offsets of a circulant must differ, also up to sign", call, way_out)
    common = math.gcd(n, *offsets)
    require(
        common == 1, "n and the offsets of a circulant must have no common factor", call, f"avoid the factor {common}"
    )
    degree = sum(1 if 2 * a == n else 2 for a in classes)
    return TopologyPlan(str(call), n, n * degree, lambda: _circulant(str(call), n, sorted(classes)))


def _parallel_ring(spec: str, m: int, forward: int, backward: int) -> Topology:
    node = np.arange(m)
    following = (node + 1) % m
    arcs = [(node, following)] * forward + [(following, node)] * backward
    return unit_topology(spec, m, arcs, [following])


def _circulant(spec: str, n: int, offsets: list[int]) -> Topology:
    node = np.arange(n)
    arcs: list[Arcs] = []
    for offset in offsets:
        target = (node + offset) % n
        arcs += [(node, target)] if 2 * offset == n else bidirectional_arcs(node, target)
    return unit_topology(spec, n, arcs, [(node + 1) % n])


RING_FAMILIES = (
    Family("ring", "ring:m", "ring:8", "bidirectional ring of m >= 3 nodes", plan_ring),
    Family("biring", "biring:d,m", "biring:4,6", "ring with d/2 parallel links each way, d even, m >= 3", plan_biring),
    Family("uniring", "uniring:d,m", "uniring:1,4", "one-way ring with d parallel links, m >= 2", plan_uniring),
    Family(
        "circulant",
        "circulant:n,a1,a2,…",
        "circulant:16,3,4",
        "n nodes, node i linked with i + a and i - a for every offset a",
        plan_circulant,
    ),
)


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
