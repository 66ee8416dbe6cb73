"""The fifteen distance-regular graphs of degree 4 that serve as bases for direct-connect networks."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families import geometry
from chorale.synth.topology.families.builders import NodeColumn, bidirectional_arcs, unit_topology
from chorale.synth.topology.families.geometry import Geometry
from chorale.synth.topology.grammar import FamilyCall
from chorale.synth.topology.registry import Family, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.topology import Topology

Edges = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class _Graph:
    """An undirected graph. Edges are int64[edges, 2]; the symmetries are those evident from its construction."""

    edges: Edges
    symmetries: tuple[NodeColumn, ...] = ()


def plan_distreg(call: FamilyCall) -> TopologyPlan:
    """Distance-regular graph of degree 4 on m nodes, with links in both directions.

    m is one of 6 (octahedron), 9 (Paley), 10 (K5,5 minus a perfect matching), 14 (distance-3 graph of the Heawood
    graph), 15 (line graph of the Petersen graph), 16 (4-cube), 21 (line graph of Heawood), 26 (incidence graph of
    PG(2, 3)), 32 (of AG(2, 4) minus a parallel class), 35 (odd graph O4), 45 (line graph of Tutte's 8-cage), 70
    (doubled odd graph), 80 (incidence graph of GQ(3, 3)), 189 (line graph of Tutte's 12-cage), 728 (incidence graph of
    GH(3, 3)). Diameters 2, 2, 3, 3, 3, 4, 3, 3, 4, 3, 4, 7, 4, 6, 6. Reverse-symmetric; BFB is bandwidth-optimal on
    every distance-regular graph (appendix F.3), and Moore-optimal for 6 and 9. Points come before lines; subsets
    and flags are in lexicographic order. Known symmetries map any node to any other, except for m = 80, where they map
    points to points and lines to lines; no symmetry exchanges them, because GQ(3, 3) is not self-dual.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table 8; Brouwer,
    Cohen, Neumaier, "Distance-Regular Graphs", 1989.
    """
    degree, m = fixed_numbers(call, "distreg:4,m", 2)
    require(degree == 4, "distreg:4,m must have degree 4", call, "write distreg:4,m")
    available = ", ".join(map(str, _GRAPHS))
    require(m in _GRAPHS, "distreg:4,m must have a number of nodes that is known", call, f"choose m from {available}")
    return TopologyPlan(str(call), m, 4 * m, lambda: _distreg(str(call), m))


def _distreg(spec: str, m: int) -> Topology:
    graph = _GRAPHS[m]()
    return unit_topology(spec, m, bidirectional_arcs(*graph.edges.T), graph.symmetries)


def _octahedron() -> _Graph:
    node = np.arange(6)
    edges = np.argwhere(np.triu((node[:, None] - node) % 3 != 0, 1))
    return _Graph(edges, ((node + 1) % 6,))


def _paley() -> _Graph:
    row, column = np.divmod(np.arange(9), 3)
    same = (row[:, None] == row) | (column[:, None] == column)
    moves = ((row + 1) % 3 * 3 + column, row * 3 + (column + 1) % 3)
    return _Graph(np.argwhere(np.triu(same, 1)), moves)


def _bipartite_minus_matching() -> _Graph:
    edges = np.argwhere(~np.eye(5, dtype=bool)) + np.array([0, 5])
    node = np.arange(10)
    return _Graph(edges, ((node + 1) % 5 + 5 * (node >= 5), (node + 5) % 10))


def _distance_3_of_heawood() -> _Graph:
    """Return the graph that joins each point of the Fano plane with each line that does not contain the point."""
    fano = geometry.plane_of_differences(7, (1, 2, 4))
    incident = np.zeros((7, 7), dtype=bool)
    incident[tuple(fano.flags.T)] = True
    return _Graph(geometry.Geometry.of_incidence(~incident).incidence_edges, _turns_of_plane(7))


def _line_graph_of_petersen() -> _Graph:
    pairs = _subsets(5, 2)
    petersen = geometry.disjoint_edges(pairs)
    moves = [geometry.moved_sets(pairs, letters) for letters in _letter_moves(5)]
    return _Graph(geometry.edge_graph(petersen), tuple(_moved_edges(petersen, move) for move in moves))


def _four_cube() -> _Graph:
    node = np.arange(16)
    flips = [node ^ (1 << bit) for bit in range(4)]
    edges = np.concatenate([np.column_stack([node, flip])[node < flip] for flip in flips])
    return _Graph(edges, tuple(flips))


def _line_graph_of_heawood() -> _Graph:
    heawood = geometry.plane_of_differences(7, (1, 2, 4)).incidence_edges
    node = np.arange(14)
    turn = (node + 1) % 7 + 7 * (node >= 7)
    double = 2 * (node % 7) % 7 + 7 * (node >= 7)  # doubling maps the set of differences onto itself
    return _Graph(geometry.edge_graph(heawood), (_moved_edges(heawood, turn), _moved_edges(heawood, double)))


def _incidence_of_pg_2_3() -> _Graph:
    return _Graph(geometry.plane_of_differences(13, (0, 1, 3, 9)).incidence_edges, _turns_of_plane(13))


def _incidence_of_ag_2_4() -> _Graph:
    """Return the incidence graph of AG(2, 4) without its vertical lines.

    Exchanging (x, y) and (m, c) is a symmetry: it preserves y = m x + c, because -1 = 1 in GF(4).
    """
    plane = geometry.affine_plane_of_order_4()
    point = np.arange(16)
    slope = point // 4
    moves = [(np.roll(np.arange(32), 16))]
    for x_shift, y_shift in ((1, 0), (2, 0), (0, 1), (0, 2)):
        moved_points = point ^ (4 * x_shift + y_shift)
        moved_lines = point ^ geometry.GF4_TIMES[slope, x_shift] ^ y_shift
        moves.append(np.concatenate([moved_points, 16 + moved_lines]))
    return _Graph(plane.incidence_edges, tuple(moves))


def _odd_graph() -> _Graph:
    triples = _subsets(7, 3)
    moves = tuple(geometry.moved_sets(triples, letters) for letters in _letter_moves(7))
    return _Graph(geometry.disjoint_edges(triples), moves)


def _line_graph_of_8_cage() -> _Graph:
    pairs = _subsets(6, 2)
    quadrangle = geometry.quadrangle_of_order_2()
    moves = (quadrangle.moved(geometry.moved_sets(pairs, letters)) for letters in _letter_moves(6))
    return _line_graph(quadrangle, moves)


def _line_graph(of: Geometry, moves: Iterable[NodeColumn]) -> _Graph:
    """Return the line graph of an incidence graph. `moves` are symmetries that permute points and then lines."""
    edges = of.incidence_edges
    return _Graph(geometry.edge_graph(edges), tuple(_moved_edges(edges, move) for move in moves))


def _doubled_odd_graph() -> _Graph:
    triples, quadruples = _subsets(7, 3), _subsets(7, 4)
    edges = geometry.subset_edges(triples, quadruples) + np.array([0, 35])
    moves = [
        np.concatenate([geometry.moved_sets(triples, letters), 35 + geometry.moved_sets(quadruples, letters)])
        for letters in _letter_moves(7)
    ]
    complements = [35 + quadruples.index(frozenset(range(7)) - triple) for triple in triples]
    exchange = np.concatenate([complements, np.argsort(complements)])
    return _Graph(edges, (*moves, exchange))


def _incidence_of_gq_3_3() -> _Graph:
    quadrangle, moves = geometry.quadrangle_of_order_3()
    return _Graph(quadrangle.incidence_edges, moves)


def _line_graph_of_12_cage() -> _Graph:
    return _line_graph(*geometry.hexagon(2))


def _incidence_of_gh_3_3() -> _Graph:
    hexagon, moves = geometry.hexagon(3)
    return _Graph(hexagon.incidence_edges, moves)


def _subsets(letters: int, size: int) -> list[frozenset[int]]:
    return [frozenset(subset) for subset in combinations(range(letters), size)]


def _letter_moves(count: int) -> tuple[tuple[int, ...], ...]:
    """Return two permutations that generate the symmetric group on `count` letters."""
    return (*range(1, count), 0), (1, 0, *range(2, count))


def _moved_edges(edges: Edges, move: NodeColumn) -> NodeColumn:
    """Return the permutation of `edges` that results from the node symmetry `move`."""
    count = int(edges.max()) + 1
    codes = np.sort(edges, axis=1) @ np.array([count, 1])
    order = np.argsort(codes)
    moved = np.sort(move[edges], axis=1) @ np.array([count, 1])
    permutation: NodeColumn = order[np.searchsorted(codes, moved, sorter=order)]
    return permutation


def _turns_of_plane(modulus: int) -> tuple[NodeColumn, NodeColumn]:
    """Return two symmetries of a difference-set plane: adding 1 to all numbers; exchanging point p and line -p."""
    node = np.arange(2 * modulus)
    is_line = node >= modulus
    turn = (node % modulus + 1) % modulus + modulus * is_line
    return turn, (-node) % modulus + modulus * ~is_line


_GRAPHS: Mapping[int, Callable[[], _Graph]] = {
    6: _octahedron,
    9: _paley,
    10: _bipartite_minus_matching,
    14: _distance_3_of_heawood,
    15: _line_graph_of_petersen,
    16: _four_cube,
    21: _line_graph_of_heawood,
    26: _incidence_of_pg_2_3,
    32: _incidence_of_ag_2_4,
    35: _odd_graph,
    45: _line_graph_of_8_cage,
    70: _doubled_odd_graph,
    80: _incidence_of_gq_3_3,
    189: _line_graph_of_12_cage,
    728: _incidence_of_gh_3_3,
}

DISTANCE_REGULAR_FAMILIES = (
    Family("distreg", "distreg:4,m", "distreg:4,32", "distance-regular, degree 4, fifteen sizes m", plan_distreg),
)
