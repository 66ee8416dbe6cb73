"""Builds rings, circulants, double binary trees, and grids: tori, meshes, hypercubes, complete graphs, HammingMesh."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from chorale.synth.topology.families.builders import (
    MAX_DIMENSIONS,
    Arcs,
    NodeColumn,
    bidirectional_arcs,
    grid_sizes,
    unit_topology,
)
from chorale.synth.topology.registry import Family, FamilyCall, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import Links, Topology

_TWISTED_SYNTAX = "twisted-torus:AxB,s or twisted-torus:AxBxC"
_HXMESH_SYNTAX = "hxmesh:b,XxY"


def plan_ring(call: FamilyCall) -> TopologyPlan:
    """Bidirectional ring: links from i to i + 1 and i - 1 modulo m.

    m >= 3 nodes, 2 m links, degree 2, diameter floor(m / 2), reverse-symmetric. BFB is bandwidth-optimal on it.
    """
    (m,) = fixed_numbers(call, "ring:m", 1)
    require(m >= 3, "ring:m must have m >= 3 nodes", call, "use complete:2 for a pair of nodes")
    return _plan_ring(call, m, forward=1, backward=1)


def plan_biring(call: FamilyCall) -> TopologyPlan:
    """BiRing(d, m): every node has d / 2 parallel links to each neighbour on the ring.

    m >= 3 nodes, d m links, degree d (even), diameter floor(m / 2), reverse-symmetric. BFB is bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, m = fixed_numbers(call, "biring:d,m", 2)
    require(d >= 2 and d % 2 == 0, "biring:d,m must have an even degree d >= 2", call, "use biring:2,m or uniring:d,m")
    require(m >= 3, "biring:d,m must have m >= 3 nodes", call, "use uniring:d,2 for a pair of nodes")
    return _plan_ring(call, m, forward=d // 2, backward=d // 2)


def plan_uniring(call: FamilyCall) -> TopologyPlan:
    """UniRing(d, m): every node has d parallel links to the next node on the ring.

    m >= 2 nodes, d m links, degree d, diameter m - 1, reverse-symmetric. BFB is bandwidth-optimal.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    d, m = fixed_numbers(call, "uniring:d,m", 2)
    require(d >= 1, "uniring:d,m must have a degree d >= 1", call, "use uniring:1,m")
    require(m >= 2, "uniring:d,m must have m >= 2 nodes", call, "use uniring:d,2 for a pair of nodes")
    return _plan_ring(call, m, forward=d, backward=0)


def _plan_ring(call: FamilyCall, m: int, forward: int, backward: int) -> TopologyPlan:
    def build() -> Topology:
        node = np.arange(m)
        following = (node + 1) % m
        arcs = [(node, following)] * forward + [(following, node)] * backward
        return unit_topology(str(call), m, arcs, [following])

    return TopologyPlan(str(call), m, (forward + backward) * m, build)


def plan_circulant(call: FamilyCall) -> TopologyPlan:
    """Circulant C(n, {a1, a2, …}): links from i to i + a and i - a modulo n for every offset a.

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

    def build() -> Topology:
        node = np.arange(n)
        arcs: list[Arcs] = []
        for offset in sorted(classes):
            target = (node + offset) % n
            arcs += [(node, target)] if 2 * offset == n else bidirectional_arcs(node, target)
        return unit_topology(str(call), n, arcs, [(node + 1) % n])

    return TopologyPlan(str(call), n, n * sum(1 if 2 * a == n else 2 for a in classes), build)


def plan_shiftedring(call: FamilyCall) -> TopologyPlan:
    """Two superposed bidirectional rings: 0, 1, 2, … and 0, s, 2 s, … modulo m.

    s is the largest stride below m / 2 that is coprime to m, so that the second ring visits every node too (for
    s = 1, the links are parallel). m >= 3 nodes, degree 4, reverse-symmetric. Each ring carries half the data; a
    schedule that is bandwidth-optimal on a single ring remains so on both rings.

    The paper does not define its second ring. For m = 1024, the all-to-all rate with s = m / 2 - 1 leads to the time in
    the paper (10738 us); other strides do not.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 8.2.
    """
    (m,) = fixed_numbers(call, "shiftedring:m", 1)
    require(m >= 3, "shiftedring:m must have m >= 3 nodes", call, "use uniring:4,2 for a pair of nodes")

    def build() -> Topology:
        node = np.arange(m)
        arcs = [*bidirectional_arcs(node, (node + 1) % m), *bidirectional_arcs(node, (node + shifted_stride(m)) % m)]
        return unit_topology(str(call), m, arcs, [(node + 1) % m])

    return TopologyPlan(str(call), m, 4 * m, build)


def shifted_stride(m: int) -> int:
    """Return the stride of the second ring in shiftedring:m."""
    return next(stride for stride in range((m - 1) // 2, 0, -1) if math.gcd(stride, m) == 1)


def plan_dbt(call: FamilyCall) -> TopologyPlan:
    """Double binary tree: bidirectional links of two binary trees; each node is an inner node of at most one tree.

    In the first tree, node 0 is the root and odd nodes are leaves. To get a node's parent, clear its lowest set bit,
    then set the next higher bit unless the result would exceed m - 1. The second tree is the first one mirrored (m
    even) or shifted by one node (m odd). m >= 2 nodes, degree at most 4, not regular, diameter below 2 log2 m + 2,
    reverse-symmetric. Each tree carries half the data.
    Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
    """
    (m,) = fixed_numbers(call, "dbt:m", 1)
    require(m >= 2, "dbt:m must have m >= 2 nodes", call, "use dbt:2")

    def build() -> Topology:
        child = np.arange(m)
        arcs = [bidirectional_arcs(child[parent >= 0], parent[parent >= 0]) for parent in double_tree_parents(m)]
        return unit_topology(str(call), m, [*arcs[0], *arcs[1]])

    return TopologyPlan(str(call), m, 4 * (m - 1), build)


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


def plan_torus(call: FamilyCall) -> TopologyPlan:
    """Torus A x B x …: bidirectional links between neighbours in each dimension, which wrap around.

    Every size >= 2; a dimension of size 2 has one pair of links, not two. The node count is the product of the sizes,
    the degree is 2 per dimension (1 for size 2), and the diameter is the sum of floor(size / 2). Reverse-symmetric. BFB
    is bandwidth-optimal, even if the sizes differ.
    """
    return _plan_torus(call, grid_sizes(call))


def _plan_torus(call: FamilyCall, sizes: Sequence[int], twists: Sequence[Mapping[int, int]] = ()) -> TopologyPlan:
    """Plan a torus in which wrapping around axis i also moves by `twists[i][other]` along each axis `other`."""
    nodes = math.prod(sizes)
    twists = twists or [{}] * len(sizes)
    axes = [(twist, size == 2 and not any(twist.values())) for size, twist in zip(sizes, twists, strict=True)]

    def build() -> Topology:
        rank = np.arange(nodes).reshape(sizes)
        arcs: list[Arcs] = []
        steps: list[NodeColumn] = []  # each node's neighbour one step along each axis
        for axis, (twist, is_pair) in enumerate(axes):
            following = np.moveaxis(np.roll(rank, -1, axis), axis, 0).copy()
            for other, shift in twist.items():
                following[-1] = np.roll(following[-1], -shift, other - (other > axis))
            steps.append(np.moveaxis(following, 0, axis).ravel())
            arcs += [(rank.ravel(), steps[-1])] if is_pair else bidirectional_arcs(rank.ravel(), steps[-1])
        return unit_topology(str(call), nodes, arcs, steps)

    return TopologyPlan(str(call), nodes, nodes * sum(1 if is_pair else 2 for _, is_pair in axes), build)


def plan_mesh(call: FamilyCall) -> TopologyPlan:
    """Mesh A x B x …: a torus without the links that wrap around.

    Every size >= 2. The diameter is the sum of size - 1. Not regular unless all sizes are 2; reverse-symmetric.
    """
    sizes = grid_sizes(call)
    nodes = math.prod(sizes)
    links = sum(2 * (size - 1) * (nodes // size) for size in sizes)

    def build() -> Topology:
        rank = np.arange(nodes).reshape(sizes)
        arcs: list[Arcs] = []
        for axis, size in enumerate(sizes):
            lower = np.take(rank, np.arange(size - 1), axis).ravel()
            upper = np.take(rank, np.arange(1, size), axis).ravel()
            arcs += bidirectional_arcs(lower, upper)
        return unit_topology(str(call), nodes, arcs)

    return TopologyPlan(str(call), nodes, links, build)


def plan_hypercube(call: FamilyCall) -> TopologyPlan:
    """Hypercube of dimension n: ranks that differ in one bit are neighbours.

    2^n nodes, degree n, diameter n, reverse-symmetric. BFB is bandwidth-optimal.
    """
    (n,) = fixed_numbers(call, "hypercube:n", 1)
    require(n >= 1, "hypercube:n must have n >= 1", call, "use hypercube:1 for a pair of nodes")
    require(n <= MAX_DIMENSIONS, f"hypercube:n must have n <= {MAX_DIMENSIONS}", call, "choose a smaller network")

    def build() -> Topology:
        node = np.arange(2**n)
        flips = [node ^ (1 << bit) for bit in range(n)]
        return unit_topology(str(call), 2**n, [(node, flip) for flip in flips], flips)

    return TopologyPlan(str(call), 2**n, n * 2**n, build)


def plan_twisted_torus(call: FamilyCall) -> TopologyPlan:
    """Torus in which links that wrap around one dimension also move along another.

    A x B with twist s: bidirectional links between neighbours in each dimension; a step from (A - 1, b) in the first
    dimension leads to (0, b + s modulo B). Every size >= 2, 0 <= s < B; an untwisted dimension of size 2 has one pair
    of links. A * B nodes, degree 4 (one less for each untwisted dimension of size 2), vertex-transitive,
    reverse-symmetric.

    k x k x 2k and k x 2k x 2k, k >= 2: the TPU v4 shapes. In the first, wrapping in either short dimension moves by
    k along the long one (face-centred cubic lattice); in the second, wrapping in the short dimension moves by k
    along both long ones (body-centred cubic). 2 k^3 or 4 k^3 nodes, degree 6, diameter floor(3 k / 2) in both, compared
    with 2 k and 5 k / 2 for the plain tori.

    BFB is bandwidth-optimal on k x 2k with s = k, in k steps, and on both TPU v4 shapes (computed, not proved).
    Source: Camara et al., "Twisted torus topologies for enhanced interconnection networks", 2010; Jouppi et al.,
    "TPU v4", 2023; Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", section 6.
    """
    shape, comma, twist_text = call.text.partition(",")
    sizes = whole_numbers(call, _TWISTED_SYNTAX, separator="x", text=shape)
    require(min(sizes) >= 2, "every dimension of twisted-torus must be >= 2", call, f"write {_TWISTED_SYNTAX}")
    if comma:
        twists = whole_numbers(call, _TWISTED_SYNTAX, text=twist_text)
        require(len(twists) == 1, "twisted-torus must have one twist s", call, f"write {_TWISTED_SYNTAX}")
        require(
            len(sizes) == 2, "only a twisted torus of two dimensions takes a twist s", call, f"write {_TWISTED_SYNTAX}"
        )
        (twist,) = twists
        require(
            twist < sizes[1], "the twist s of twisted-torus:AxB,s must be below B", call, f"write {_TWISTED_SYNTAX}"
        )
        return _plan_torus(call, sizes, ({1: twist}, {}))
    rule = "twisted-torus without s must have the shape k x k x 2k or k x 2k x 2k"
    k = sizes[0]
    require(
        sizes in ([k, k, 2 * k], [k, 2 * k, 2 * k]), rule, call, f"write {_TWISTED_SYNTAX}, the short dimensions first"
    )
    face_centred = sizes[1] == k
    return _plan_torus(call, sizes, ({2: k}, {2: k}, {}) if face_centred else ({1: k, 2: k}, {}, {}))


def plan_twisted_hypercube(call: FamilyCall) -> TopologyPlan:
    """Hypercube in which two opposite links of one square are crossed.

    n >= 3. The square consists of the last four ranks z - 3, z - 2, z - 1, z. Its diagonals replace the links between
    z - 3 and z - 2 and between z - 1 and z. 2^n nodes, degree n, diameter n - 1, reverse-symmetric. BFB is
    bandwidth-optimal for n = 3, but not for n = 4, 5, 6.
    Source: Esfahanian, Ni, Sagan, "The twisted n-cube with application to multiprocessing", 1991.
    """
    (n,) = fixed_numbers(call, "twisted-hypercube:n", 1)
    require(n >= 3, "twisted-hypercube:n must have n >= 3", call, "use twisted-hypercube:3")
    rule = f"twisted-hypercube:n must have n <= {MAX_DIMENSIONS}"
    require(n <= MAX_DIMENSIONS, rule, call, "choose a smaller network")

    def build() -> Topology:
        node = np.arange(2**n)
        arcs: list[Arcs] = [(node, node ^ (1 << bit)) for bit in range(1, n)]
        first = 2**n - 4
        crossed = np.where(node >= first, first + 3 - (node - first), node ^ 1)
        return unit_topology(str(call), 2**n, [*arcs, (node, crossed)])

    return TopologyPlan(str(call), 2**n, n * 2**n, build)


def plan_complete(call: FamilyCall) -> TopologyPlan:
    """Complete graph: links in both directions between any two of m >= 2 nodes.

    Degree m - 1, diameter 1, reverse-symmetric. BFB is Moore- and bandwidth-optimal.
    """
    (m,) = fixed_numbers(call, "complete:m", 1)
    require(m >= 2, "complete:m must have m >= 2 nodes", call, "use complete:2 for a pair of nodes")
    return _plan_complete(call, [m])


def plan_bipartite(call: FamilyCall) -> TopologyPlan:
    """Complete bipartite K(d, d): ranks 0 to d - 1 are linked to ranks d to 2 d - 1, both ways.

    2 d nodes, degree d, diameter 2 (1 for d = 1), reverse-symmetric. BFB is Moore- and bandwidth-optimal.
    """
    (d,) = fixed_numbers(call, "bipartite:d", 1)
    require(d >= 1, "bipartite:d must have d >= 1", call, "use bipartite:2 or more")

    def build() -> Topology:
        low = np.repeat(np.arange(d), d)
        high = np.tile(np.arange(d, 2 * d), d)
        turn = (np.arange(d) + 1) % d
        rotation = np.concatenate([turn, turn + d])
        swap = np.roll(np.arange(2 * d), d)
        return unit_topology(str(call), 2 * d, bidirectional_arcs(low, high), [rotation, swap])

    return TopologyPlan(str(call), 2 * d, 2 * d * d, build)


def plan_hamming(call: FamilyCall) -> TopologyPlan:
    """Hamming graph H(n, q): words of n letters from an alphabet of q, linked both ways if they differ in one letter.

    n >= 1, q >= 2; q^n nodes in lexicographic order, degree n (q - 1), diameter n, distance-regular,
    reverse-symmetric. BFB is bandwidth-optimal; H(2, q) is Moore-optimal too.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table of bases.
    """
    n, q = fixed_numbers(call, "hamming:n,q", 2)
    require(n >= 1, "hamming:n,q must have words of n >= 1 letters", call, "use hamming:1,q")
    require(q >= 2, "hamming:n,q must have q >= 2 letters", call, "use hamming:n,2")
    require(n <= MAX_DIMENSIONS, f"hamming:n,q must have n <= {MAX_DIMENSIONS}", call, "choose a smaller network")
    return _plan_complete(call, [q] * n)


def plan_hyperx(call: FamilyCall) -> TopologyPlan:
    """HyperX A x B x …: links in both directions between nodes that differ in one coordinate.

    Every size >= 2. The node count is the product of the sizes, the degree is the sum of size - 1, and the diameter is
    the number of dimensions. Reverse-symmetric. BFB is bandwidth-optimal (theorem 13, for products of simple graphs). A
    router and its only node are modelled as a single node.
    Source: Ahn et al., "HyperX: topology, routing, and packaging of efficient large-scale networks", 2009.
    """
    return _plan_complete(call, grid_sizes(call))


def _plan_complete(call: FamilyCall, sizes: list[int]) -> TopologyPlan:
    nodes = math.prod(sizes)

    def build() -> Topology:
        rank = np.arange(nodes).reshape(sizes)
        arcs: list[Arcs] = []
        for axis, size in enumerate(sizes):
            arcs += [(rank.ravel(), np.roll(rank, -shift, axis).ravel()) for shift in range(1, size)]
        turns = [np.roll(rank, -1, axis).ravel() for axis in range(len(sizes))]
        return unit_topology(str(call), nodes, arcs, turns)

    return TopologyPlan(str(call), nodes, nodes * sum(size - 1 for size in sizes), build)


def plan_hxmesh(call: FamilyCall) -> TopologyPlan:
    """HammingMesh: X x Y boards, each a mesh of b x b nodes, joined by one switch per row and per column of nodes.

    The nodes form a grid of X b rows and Y b columns, ranked row by row. In each row of a board, the first and the last
    node are linked to the switch of that row (`row:I`). In each column, they are linked to the switch of that column
    (`column:J`). All links have capacity 1 in both directions; a switch stands for a fat tree without contention. With
    b = 1, a node has two parallel links to each of its two switches, and the network behaves like a HyperX. A direction
    with a single board has no switches. Compute nodes have degree 4 for X, Y >= 2; diameter 2 b - 2 within a board;
    reverse-symmetric. BFB does not support switches.
    Source: Hoefler et al., "HammingMesh: a network topology for large-scale deep learning", 2022.
    """
    board_text, _, shape_text = call.text.partition(",")
    (b,) = whole_numbers(call, _HXMESH_SYNTAX, text=board_text)
    boards = whole_numbers(call, _HXMESH_SYNTAX, separator="x", text=shape_text)
    way_out = f"write {_HXMESH_SYNTAX} such as hxmesh:2,4x4"
    require(len(boards) == 2, "hxmesh must have two numbers of boards, XxY", call, way_out)
    require(b >= 1 and min(boards) >= 1, "hxmesh:b,XxY must have b, X and Y >= 1", call, way_out)
    rows, columns = (b * count for count in boards)
    require(rows * columns >= 2, "hxmesh must have at least two nodes", call, way_out)
    nodes, links = rows * columns, 0
    for lines, boards_in_line in ((rows, boards[1]), (columns, boards[0])):
        joined = boards_in_line > 1
        nodes += lines if joined else 0
        links += lines * boards_in_line * (2 * (b - 1) + (4 if joined else 0))

    def build() -> Topology:
        rank = np.arange(rows * columns).reshape(rows, columns)
        ids = list(map(str, range(rank.size)))
        arcs: list[Arcs] = []
        switches: list[NodeColumn] = []  # switches of the rows, then of the columns
        for name, grid in (("row", rank), ("column", rank.T)):
            # Links between neighbours on the same board, in the rows of `grid`
            column = np.flatnonzero(np.arange(grid.shape[1] - 1) % b != b - 1)
            arcs += bidirectional_arcs(grid[:, column].ravel(), grid[:, column + 1].ravel())
            lines = len(grid) if grid.shape[1] > b else 0
            switches.append(len(ids) + np.arange(lines))
            ids += [f"{name}:{index}" for index in range(lines)]
            if lines:  # links between the row switches and both ends of every board
                ends = np.concatenate([grid[:, ::b], grid[:, b - 1 :: b]], axis=1)
                arcs += bidirectional_arcs(ends.ravel(), np.repeat(switches[-1], ends.shape[1]))
        shifts = []
        for axis in (0, 1):
            if rank.shape[axis] > b:  # move every board by one position along `axis`, and its switches with it
                shift = np.arange(len(ids), dtype=np.int32)
                shift[: rank.size] = np.roll(rank, -b, axis).ravel()
                shift[switches[axis]] = np.roll(switches[axis], -b)
                shifts.append(shift)
        src, dst = (np.concatenate(ends) for ends in zip(*arcs, strict=True))
        return Topology(str(call), tuple(ids), rank.size, Links.of_unit_capacity(src, dst), automorphisms=tuple(shifts))

    return TopologyPlan(str(call), nodes, links, build)


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
        _TWISTED_SYNTAX,
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
    Family("complete", "complete:m", "complete:4", "all pairs of m >= 2 nodes", plan_complete),
    Family("bipartite", "bipartite:d", "bipartite:4", "complete bipartite graph on d + d nodes", plan_bipartite),
    Family("hamming", "hamming:n,q", "hamming:2,3", "words of n letters out of q, differing in one", plan_hamming),
    Family("hyperx", "hyperx:AxBx…", "hyperx:4x4", "complete graph along every dimension of a grid", plan_hyperx),
    Family(
        "hxmesh", _HXMESH_SYNTAX, "hxmesh:2,2x2", "HammingMesh: boards of b x b nodes, a switch per row", plan_hxmesh
    ),
)
