"""Rings, tori, meshes, hypercubes, twisted tori and hypercubes, circulants, shifted rings and double binary trees."""

import math

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.builders import (
    MAX_DIMENSIONS,
    Arcs,
    NodeColumn,
    bidirectional_arcs,
    grid_sizes,
    unit_topology,
)
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
    """UniRing(d, m): every node has d parallel links to the next node on the ring.

    m >= 2 nodes, d m links, degree d, diameter m - 1, reverse-symmetric. BFB is bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, m = fixed_numbers(call, "uniring:d,m", 2)
    require(d >= 1, "uniring:d,m must have a degree d >= 1", call, "use uniring:1,m")
    require(m >= 2, "uniring:d,m must have m >= 2 nodes", call, "use uniring:d,2 for a pair of nodes")
    return TopologyPlan(str(call), m, d * m, lambda: _parallel_ring(str(call), m, forward=d, backward=0))


def plan_circulant(call: FamilyCall) -> TopologyPlan:
    """Circulant C(n, {a1, a2, …}): links i to i + a and i - a modulo n for every offset a.

    n nodes, degree 2 per offset (1 for the offset n / 2), reverse-symmetric. C(n, {m, m + 1}) with m near
    sqrt(n / 2) has diameter about sqrt(n / 2). BFB is bandwidth-optimal for two offsets, but not always for three or
    more: an exception is C(15, {1, 4, 5}).
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


def plan_shiftedring(call: FamilyCall) -> TopologyPlan:
    """Two superposed bidirectional rings: 0, 1, 2, … and 0, s, 2 s, … modulo m.

    s is the largest stride below m / 2 that is coprime to m, so that the second ring visits every node too (for
    s = 1, the links are parallel). m >= 3 nodes, degree 4, reverse-symmetric. Each ring carries half the data; a
    schedule that is bandwidth-optimal on a single ring remains so on both rings.

    The paper does not define its second ring. With s = m / 2 - 1 at m = 1024, the all-to-all rate gives the time that
    the paper prints (10738 us); other strides do not.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 8.2.
    """
    (m,) = fixed_numbers(call, "shiftedring:m", 1)
    require(m >= 3, "shiftedring:m must have m >= 3 nodes", call, "use uniring:4,2 for a pair of nodes")
    return TopologyPlan(str(call), m, 4 * m, lambda: _shiftedring(str(call), m))


def plan_dbt(call: FamilyCall) -> TopologyPlan:
    """Double binary tree: bidirectional links of two binary trees; each node is an inner node of at most one tree.

    In the first tree, node 0 is the root. A node's parent has the next higher bit set in place of the node's lowest set
    bit, or only that bit cleared if this exceeds m - 1; odd nodes are leaves. The second tree is the mirror image
    (m even) or is shifted by one (m odd). m >= 2 nodes, degree at most 4, not regular, diameter below 2 log2 m + 2,
    reverse-symmetric. Each tree carries half the data.
    Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
    """
    (m,) = fixed_numbers(call, "dbt:m", 1)
    require(m >= 2, "dbt:m must have m >= 2 nodes", call, "use dbt:2")
    return TopologyPlan(str(call), m, 4 * (m - 1), lambda: _dbt(str(call), m))


def shifted_stride(m: int) -> int:
    """Return the stride of the second ring in shiftedring:m."""
    return next(stride for stride in range((m - 1) // 2, 0, -1) if math.gcd(stride, m) == 1)


def _shiftedring(spec: str, m: int) -> Topology:
    node = np.arange(m)
    arcs = [*bidirectional_arcs(node, (node + 1) % m), *bidirectional_arcs(node, (node + shifted_stride(m)) % m)]
    return unit_topology(spec, m, arcs, [(node + 1) % m])


def double_tree_parents(m: int) -> tuple[NodeColumn, NodeColumn]:
    """Return (int64[m], int64[m]): the parent of each node in both trees of dbt:m, or -1 for the root."""
    child = np.arange(1, m)
    lowest_bit = child & -child
    upper = (child ^ lowest_bit) | (lowest_bit << 1)
    first = np.concatenate([[-1], np.where(upper < m, upper, child ^ lowest_bit)])
    other = m - 1 - np.arange(m) if m % 2 == 0 else (np.arange(m) + 1) % m  # the same tree with renamed nodes
    second = np.full(m, -1)
    second[other[1:]] = other[first[1:]]
    return first, second


def _dbt(spec: str, m: int) -> Topology:
    child = np.arange(m)
    arcs = [bidirectional_arcs(child[parent >= 0], parent[parent >= 0]) for parent in double_tree_parents(m)]
    return unit_topology(spec, m, [*arcs[0], *arcs[1]])


def plan_torus(call: FamilyCall) -> TopologyPlan:
    """Torus A x B x …: bidirectional links between neighbours in each dimension, which wrap around.

    Every size >= 2; a dimension of size 2 has one pair of links, not two. The node count is the product of the sizes;
    degree 2 per dimension (1 for size 2), diameter the sum of floor(size / 2), reverse-symmetric. BFB is
    bandwidth-optimal, even if the sizes differ.
    """
    sizes = grid_sizes(call)
    nodes = math.prod(sizes)
    links = nodes * sum(1 if size == 2 else 2 for size in sizes)
    return TopologyPlan(str(call), nodes, links, lambda: _torus(str(call), sizes))


def plan_mesh(call: FamilyCall) -> TopologyPlan:
    """Mesh A x B x …: a torus without the links that wrap around.

    Every size >= 2; diameter the sum of size - 1; not regular unless all sizes are 2; reverse-symmetric.
    """
    sizes = grid_sizes(call)
    nodes = math.prod(sizes)
    links = sum(2 * (size - 1) * (nodes // size) for size in sizes)
    return TopologyPlan(str(call), nodes, links, lambda: _mesh(str(call), sizes))


def plan_hypercube(call: FamilyCall) -> TopologyPlan:
    """Hypercube of dimension n: ranks that differ in one bit are neighbours.

    2^n nodes, degree n, diameter n, reverse-symmetric. BFB is bandwidth-optimal.
    """
    (n,) = fixed_numbers(call, "hypercube:n", 1)
    require(n >= 1, "hypercube:n must have n >= 1", call, "use hypercube:1 for a pair of nodes")
    require(n <= MAX_DIMENSIONS, f"hypercube:n must have n <= {MAX_DIMENSIONS}", call, "choose a smaller network")
    return TopologyPlan(str(call), 2**n, n * 2**n, lambda: _hypercube(str(call), n))


def _grid(sizes: list[int]) -> NDArray[np.int64]:
    """Return the ranks as an array of shape `sizes`; the last dimension varies fastest."""
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


_SYNTAX = "twisted-torus:AxB,s or twisted-torus:AxBxC"


Grid = NDArray[np.int64]


def plan_twisted_torus(call: FamilyCall) -> TopologyPlan:
    """Torus in which links that wrap around one dimension also move along another.

    A x B with twist s: bidirectional links between neighbours in each dimension; a step from (A - 1, b) in the first
    dimension leads to (0, b + s modulo B). Every size >= 2, 0 <= s < B; an untwisted dimension of size 2 has one
    pair of links. A * B nodes, degree 4 (one less per such dimension), vertex-transitive, reverse-symmetric.

    k x k x 2k and k x 2k x 2k, k >= 2: the TPU v4 shapes. In the first, wrapping in either short dimension moves by
    k along the long one (face-centred cubic lattice); in the second, wrapping in the short dimension moves by k
    along both long ones (body-centred cubic). 2 k^3 or 4 k^3 nodes, degree 6, diameter floor(3 k / 2) in both, compared
    with 2 k and 5 k / 2 for the plain tori.

    BFB is bandwidth-optimal on k x 2k with s = k, in k steps, and on both TPU v4 shapes (computed, not proved).
    Source: Camara et al., "Twisted torus topologies for enhanced interconnection networks", 2010; Jouppi et al.,
    "TPU v4", 2023; Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 6.
    """
    shape, comma, twist_text = call.text.partition(",")
    sizes = whole_numbers(call, _SYNTAX, separator="x", text=shape)
    require(min(sizes) >= 2, "every dimension of twisted-torus must be >= 2", call, f"write {_SYNTAX}")
    if comma:
        twists = whole_numbers(call, _SYNTAX, text=twist_text)
        require(len(twists) == 1, "twisted-torus must have one twist s", call, f"write {_SYNTAX}")
        require(len(sizes) == 2, "only a twisted torus of two dimensions takes a twist s", call, f"write {_SYNTAX}")
        (twist,) = twists
        require(twist < sizes[1], "the twist s of twisted-torus:AxB,s must be below B", call, f"write {_SYNTAX}")
        return _plan_two(call, sizes, twist)
    rule = "twisted-torus without s must have the shape k x k x 2k or k x 2k x 2k"
    k = sizes[0]
    require(sizes in ([k, k, 2 * k], [k, 2 * k, 2 * k]), rule, call, f"write {_SYNTAX}, the short dimensions first")
    nodes = math.prod(sizes)
    return TopologyPlan(str(call), nodes, 6 * nodes, lambda: _three(str(call), sizes))


def plan_twisted_hypercube(call: FamilyCall) -> TopologyPlan:
    """Hypercube in which two opposite links of one square are crossed.

    n >= 3; in the square of the last four ranks z - 3, z - 2, z - 1, z, the diagonals replace the links between z - 3
    and z - 2 and between z - 1 and z. 2^n nodes, degree n, diameter n - 1, reverse-symmetric. BFB is bandwidth-optimal
    for n = 3, but not for n = 4, 5, 6.
    Source: Esfahanian, Ni, Sagan, "The twisted n-cube with application to multiprocessing", 1991.
    """
    (n,) = fixed_numbers(call, "twisted-hypercube:n", 1)
    require(n >= 3, "twisted-hypercube:n must have n >= 3", call, "use twisted-hypercube:3")
    rule = f"twisted-hypercube:n must have n <= {MAX_DIMENSIONS}"
    require(n <= MAX_DIMENSIONS, rule, call, "choose a smaller network")
    return TopologyPlan(str(call), 2**n, n * 2**n, lambda: _twisted_hypercube(str(call), n))


def _plan_two(call: FamilyCall, sizes: list[int], twist: int) -> TopologyPlan:
    nodes = math.prod(sizes)
    degree = (1 if sizes[0] == 2 and twist == 0 else 2) + (1 if sizes[1] == 2 else 2)
    return TopologyPlan(str(call), nodes, degree * nodes, lambda: _two(str(call), sizes, twist))


def _two(spec: str, sizes: list[int], twist: int) -> Topology:
    rank = np.arange(math.prod(sizes)).reshape(sizes)
    down, right = _step(rank, 0, {1: twist}), _step(rank, 1, {})
    single = (sizes[0] == 2 and twist == 0, sizes[1] == 2)
    return _from_steps(spec, rank, [down, right], single)


def _three(spec: str, sizes: list[int]) -> Topology:
    k = sizes[0]
    rank = np.arange(math.prod(sizes)).reshape(sizes)
    if sizes[1] == k:
        steps = [_step(rank, 0, {2: k}), _step(rank, 1, {2: k}), _step(rank, 2, {})]
    else:
        steps = [_step(rank, 0, {1: k, 2: k}), _step(rank, 1, {}), _step(rank, 2, {})]
    return _from_steps(spec, rank, steps, (False, False, False))


def _step(rank: Grid, axis: int, twists: dict[int, int]) -> Grid:
    """Return each node's neighbour one step along `axis`. Wrapping also moves by `twists[other]` along axis `other`."""
    following = np.moveaxis(np.roll(rank, -1, axis), axis, 0).copy()
    for other, shift in twists.items():
        following[-1] = np.roll(following[-1], -shift, other - (other > axis))
    return np.moveaxis(following, 0, axis)


def _from_steps(spec: str, rank: Grid, steps: list[Grid], single: tuple[bool, ...]) -> Topology:
    arcs: list[Arcs] = []
    for following, one_pair in zip(steps, single, strict=True):
        ends = (rank.ravel(), following.ravel())
        arcs += [ends] if one_pair else bidirectional_arcs(*ends)
    return unit_topology(spec, rank.size, arcs, [following.ravel() for following in steps])


def _twisted_hypercube(spec: str, n: int) -> Topology:
    node = np.arange(2**n)
    arcs: list[Arcs] = [(node, node ^ (1 << bit)) for bit in range(1, n)]
    first = 2**n - 4
    crossed = np.where(node >= first, first + 3 - (node - first), node ^ 1)
    return unit_topology(spec, 2**n, [*arcs, (node, crossed)])


GRID_FAMILIES = (
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
    Family(
        "shiftedring", "shiftedring:m", "shiftedring:8", "two superposed rings, the second shifted", plan_shiftedring
    ),
    Family("dbt", "dbt:m", "dbt:8", "double binary tree, not regular", plan_dbt),
    Family("torus", "torus:AxBx…", "torus:4x4x2", "wrap-around grid, every dimension >= 2", plan_torus),
    Family("mesh", "mesh:AxBx…", "mesh:4x4", "grid without wrap-around links", plan_mesh),
    Family("hypercube", "hypercube:n", "hypercube:3", "2^n nodes, neighbours differ in one bit", plan_hypercube),
    Family(
        "twisted-torus",
        _SYNTAX,
        "twisted-torus:4x8,4",
        "torus that shifts where it wraps: by s in two dimensions, by k in k x k x 2k and k x 2k x 2k",
        plan_twisted_torus,
    ),
    Family(
        "twisted-hypercube",
        "twisted-hypercube:n",
        "twisted-hypercube:3",
        "hypercube with one square crossed: diameter n - 1",
        plan_twisted_hypercube,
    ),
)
