"""Complete graphs, complete bipartite graphs, Hamming graphs and HyperX (products of complete graphs), HammingMesh."""

import math

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.builders import MAX_DIMENSIONS, Arcs, bidirectional_arcs, grid_sizes, unit_topology
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.links import Links
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require, whole_numbers
from chorale.synth.topology.topology import Topology


def plan_complete(call: FamilyCall) -> TopologyPlan:
    """Complete graph: links in both directions between any two of m >= 2 nodes.

    Degree m - 1, diameter 1, reverse-symmetric. BFB is Moore- and bandwidth-optimal.
    """
    (m,) = fixed_numbers(call, "complete:m", 1)
    require(m >= 2, "complete:m must have m >= 2 nodes", call, "use complete:2 for a pair of nodes")
    return _plan(call, [m])


def plan_bipartite(call: FamilyCall) -> TopologyPlan:
    """Complete bipartite K(d, d): ranks 0 to d - 1 are linked to ranks d to 2 d - 1, both ways.

    2 d nodes, degree d, diameter 2 (1 for d = 1), reverse-symmetric. BFB is Moore- and bandwidth-optimal.
    """
    (d,) = fixed_numbers(call, "bipartite:d", 1)
    require(d >= 1, "bipartite:d must have d >= 1", call, "use bipartite:2 or more")
    return TopologyPlan(str(call), 2 * d, 2 * d * d, lambda: _bipartite(str(call), d))


def _bipartite(spec: str, d: int) -> Topology:
    low = np.repeat(np.arange(d), d)
    high = np.tile(np.arange(d, 2 * d), d)
    turn = (np.arange(d) + 1) % d
    rotation = np.concatenate([turn, turn + d])
    swap = np.roll(np.arange(2 * d), d)
    return unit_topology(spec, 2 * d, bidirectional_arcs(low, high), [rotation, swap])


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
    return _plan(call, [q] * n)


def plan_hyperx(call: FamilyCall) -> TopologyPlan:
    """HyperX A x B x …: links in both directions between nodes that differ in one coordinate.

    Every size >= 2; the node count is the product of the sizes, the degree is the sum of size - 1, the diameter is the
    number of dimensions; reverse-symmetric. BFB is bandwidth-optimal (theorem 13: a product of optimal simple graphs).
    Source: Ahn et al., "HyperX: topology, routing, and packaging of efficient large-scale networks", 2009. Here, a
    router and its only node are modelled as a single node.
    """
    return _plan(call, grid_sizes(call))


def _plan(call: FamilyCall, sizes: list[int]) -> TopologyPlan:
    nodes = math.prod(sizes)

    def build() -> Topology:
        rank = np.arange(nodes).reshape(sizes)
        arcs: list[Arcs] = []
        for axis, size in enumerate(sizes):
            arcs += [(rank.ravel(), np.roll(rank, -shift, axis).ravel()) for shift in range(1, size)]
        turns = [np.roll(rank, -1, axis).ravel() for axis in range(len(sizes))]
        return unit_topology(str(call), nodes, arcs, turns)

    return TopologyPlan(str(call), nodes, nodes * sum(size - 1 for size in sizes), build)


_SYNTAX = "hxmesh:b,XxY"

Grid = NDArray[np.int64]


def plan_hxmesh(call: FamilyCall) -> TopologyPlan:
    """HammingMesh: X x Y boards, each a mesh of b x b nodes, joined by one switch per row and per column of nodes.

    The nodes form a grid of X b rows and Y b columns, ranked row by row. The first and last node of a board in each
    row are linked to the switch of that row (`row:I`), the first and last in each column to the switch of that column
    (`column:J`). All links have capacity 1 in both directions; a switch stands for a fat tree without contention. With
    b = 1, a node has two parallel links to each of its two switches, and the network behaves like a HyperX. A direction
    with a single board has no switches. Compute nodes have degree 4 for X, Y >= 2; diameter 2 b - 2 within a board;
    reverse-symmetric. BFB does not support switches.
    Source: Hoefler et al., "HammingMesh: a network topology for large-scale deep learning", 2022.
    """
    board_text, _, shape_text = call.text.partition(",")
    (b,) = whole_numbers(call, _SYNTAX, text=board_text)
    boards = whole_numbers(call, _SYNTAX, separator="x", text=shape_text)
    way_out = f"write {_SYNTAX} such as hxmesh:2,4x4"
    require(len(boards) == 2, "hxmesh must have two numbers of boards, XxY", call, way_out)
    require(b >= 1 and min(boards) >= 1, "hxmesh:b,XxY must have b, X and Y >= 1", call, way_out)
    rows, columns = (b * count for count in boards)
    require(rows * columns >= 2, "hxmesh must have at least two nodes", call, way_out)
    nodes, links = rows * columns, 0
    for lines, boards_in_line in ((rows, boards[1]), (columns, boards[0])):
        joined = boards_in_line > 1
        nodes += lines if joined else 0
        links += lines * boards_in_line * (2 * (b - 1) + (4 if joined else 0))
    return TopologyPlan(str(call), nodes, links, lambda: _hxmesh(str(call), b, rows, columns))


def _hxmesh(spec: str, b: int, rows: int, columns: int) -> Topology:
    rank = np.arange(rows * columns).reshape(rows, columns)
    ids = list(map(str, range(rank.size)))
    arcs: list[Arcs] = []
    switches: list[slice | None] = []  # switches of the rows, then of the columns
    for name, grid in (("row", rank), ("column", rank.T)):
        # Links between neighbours on the same board, in the rows of `grid`
        column = np.flatnonzero(np.arange(grid.shape[1] - 1) % b != b - 1)
        arcs += bidirectional_arcs(grid[:, column].ravel(), grid[:, column + 1].ravel())
        joined = grid.shape[1] > b
        switches.append(slice(len(ids), len(ids) + len(grid)) if joined else None)
        if joined:
            arcs += _switch_links(grid, b, first_switch=len(ids))
            ids += [f"{name}:{index}" for index in range(len(grid))]
    src, dst = (np.concatenate(ends) for ends in zip(*arcs, strict=True))
    shifts = [_shift_of_boards(rank, b, axis, len(ids), switches[axis]) for axis in (0, 1) if rank.shape[axis] > b]
    links = Links.of_unit_capacity(src, dst)
    return Topology(spec, tuple(ids), rank.size, links, automorphisms=tuple(shifts))


def _shift_of_boards(rank: Grid, b: int, axis: int, nodes: int, switches: slice | None) -> NDArray[np.int32]:
    """Return the symmetry that moves every board by one position along `axis`.

    switches: the switches that move together with the boards; None if there are none
    """
    shift = np.arange(nodes, dtype=np.int32)
    shift[: rank.size] = np.roll(rank, -b, axis).ravel()
    if switches is not None:
        shift[switches] = np.roll(shift[switches], -b)
    return shift


def _switch_links(grid: Grid, b: int, first_switch: int) -> list[Arcs]:
    """Return the links between the row switches and both ends of every board, for each row of `grid`."""
    ends = np.concatenate([grid[:, ::b], grid[:, b - 1 :: b]], axis=1)
    switch = np.repeat(first_switch + np.arange(len(grid)), ends.shape[1])
    return bidirectional_arcs(ends.ravel(), switch)


COMPLETE_FAMILIES = (
    Family("complete", "complete:m", "complete:4", "all pairs of m >= 2 nodes", plan_complete),
    Family("bipartite", "bipartite:d", "bipartite:4", "complete bipartite graph on d + d nodes", plan_bipartite),
    Family("hamming", "hamming:n,q", "hamming:2,3", "words of n letters out of q, differing in one", plan_hamming),
    Family("hyperx", "hyperx:AxBx…", "hyperx:4x4", "complete graph along every dimension of a grid", plan_hyperx),
    Family("hxmesh", _SYNTAX, "hxmesh:2,2x2", "HammingMesh: boards of b x b nodes, a switch per row", plan_hxmesh),
)
