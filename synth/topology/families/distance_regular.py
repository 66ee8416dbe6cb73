"""Builds the fifteen distance-regular graphs of degree 4 that are used as bases for direct-connect networks.

Most are built from geometries of points and lines, given as bool[points, lines]: whether the point is on the line.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.builders import bidirectional_arcs, unit_topology
from chorale.synth.topology.registry import Family, FamilyCall, TopologyPlan, fixed_numbers, require
from chorale.synth.topology.symmetry_search import symmetries_of
from chorale.synth.topology.topology import Topology

Edges = NDArray[np.int64]
"""int64[edges, 2]: edges of an undirected graph."""
Incidence = NDArray[np.bool_]

_SIZES = (6, 9, 10, 14, 15, 16, 21, 26, 32, 35, 45, 70, 80, 189, 728)


def plan_distreg(call: FamilyCall) -> TopologyPlan:
    """Distance-regular graph of degree 4 on m nodes, with links in both directions.

    m is one of 6 (octahedron), 9 (Paley), 10 (K5,5 minus a perfect matching), 14 (distance-3 graph of the Heawood
    graph), 15 (line graph of the Petersen graph), 16 (4-cube), 21 (line graph of Heawood), 26 (incidence graph of
    PG(2, 3)), 32 (incidence graph of AG(2, 4) minus a parallel class), 35 (odd graph O4), 45 (line graph of Tutte's
    8-cage), 70 (doubled odd graph), 80 (incidence graph of GQ(3, 3)), 189 (line graph of Tutte's 12-cage), 728
    (incidence graph of GH(3, 3)). Diameters, in order: 2, 2, 3, 3, 3, 4, 3, 3, 4, 3, 4, 7, 4, 6, 6. Reverse-symmetric;
    BFB is bandwidth-optimal on every distance-regular graph (appendix F.3), and Moore-optimal for m = 6 and 9. Nodes
    for points come before nodes for lines; subsets and flags are in lexicographic order. Symmetries map any node to any
    other. The exception is m = 80: no symmetry maps a point to a line, because GQ(3, 3) is not self-dual.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", table 8; Brouwer,
    Cohen, Neumaier, "Distance-Regular Graphs", 1989.
    """
    degree, m = fixed_numbers(call, "distreg:4,m", 2)
    require(degree == 4, "distreg:4,m must have degree 4", call, "write distreg:4,m")
    available = ", ".join(map(str, _SIZES))
    require(m in _SIZES, "distreg:4,m does not exist for this number of nodes", call, f"choose m from {available}")

    def build() -> Topology:
        topology = unit_topology(str(call), m, bidirectional_arcs(*_edges(m).T))
        return replace(topology, automorphisms=symmetries_of(topology))

    return TopologyPlan(str(call), m, 4 * m, build)


def _edges(m: int) -> Edges:
    node = np.arange(m)
    match m:
        case 6:  # octahedron: all pairs except opposite corners
            edges = _pairs((node[:, None] - node) % 3 != 0)
        case 9:  # Paley graph: the same row or column of a 3 x 3 grid
            row, column = np.divmod(node, 3)
            edges = _pairs((row[:, None] == row) | (column[:, None] == column))
        case 10:
            edges = _incidence_edges(~np.eye(5, dtype=bool))
        case 14:  # each point of the Fano plane and the lines that do not contain it
            edges = _incidence_edges(~_difference_plane(7, (1, 2, 4)))
        case 15:
            edges = _line_graph(_disjoint_sets(_subsets(5, 2)))
        case 16:
            edges = _pairs(np.bitwise_count(node[:, None] ^ node) == 1)
        case 21:
            edges = _line_graph(_incidence_edges(_difference_plane(7, (1, 2, 4))))
        case 26:
            edges = _incidence_edges(_difference_plane(13, (0, 1, 3, 9)))
        case 32:  # AG(2, 4) without its vertical lines: point 4 x + y is on line 4 a + b if y = a x + b over GF(4)
            x, y, a, b = np.meshgrid(*[np.arange(4)] * 4, indexing="ij")
            product = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]])[a, x]
            edges = _incidence_edges((y == (product ^ b)).reshape(16, 16))
        case 35:
            edges = _disjoint_sets(_subsets(7, 3))
        case 45:  # GQ(2, 2): the pairs of six letters, and the partitions of the letters into pairs
            pairs = _subsets(6, 2)
            splits = [split for split in combinations(pairs, 3) if len(frozenset().union(*split)) == 6]
            edges = _line_graph(_incidence_edges(np.array([[pair in split for split in splits] for pair in pairs])))
        case 70:
            edges = _incidence_edges(np.array([[low < high for high in _subsets(7, 4)] for low in _subsets(7, 3)]))
        case 80:  # GQ(3, 3): points of PG(3, 3), and lines on which x0 y1 - x1 y0 + x2 y3 - x3 y2 = 0
            points = _projective_points(3, 3)
            form = np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]])
            edges = _incidence_edges(_projective_lines(points, points @ form @ points.T % 3 == 0, 3))
        case 189:
            edges = _line_graph(_incidence_edges(_hexagon(2)))
        case _:
            edges = _incidence_edges(_hexagon(3))
    return edges


def _pairs(is_edge: NDArray[np.bool_]) -> Edges:
    return np.argwhere(np.triu(is_edge, 1))


def _incidence_edges(incident: Incidence) -> Edges:
    """Return the edges of the incidence graph, whose nodes are the points and then the lines."""
    return np.argwhere(incident) + np.array([0, len(incident)], dtype=np.int64)


def _line_graph(edges: Edges) -> Edges:
    """Return the edges of the line graph: all pairs of `edges` that share an end, in lexicographic order."""
    return _pairs((edges[:, None, :, None] == edges[None, :, None, :]).any(axis=(2, 3)))


def _subsets(letters: int, size: int) -> list[frozenset[int]]:
    return [frozenset(subset) for subset in combinations(range(letters), size)]


def _disjoint_sets(sets: Sequence[frozenset[int]]) -> Edges:
    return _pairs(np.array([[not first & second for second in sets] for first in sets]))


def _difference_plane(modulus: int, differences: tuple[int, ...]) -> Incidence:
    """Return the plane in which point p lies on line l if p - l modulo `modulus` is one of the `differences`."""
    node = np.arange(modulus)
    return np.isin((node[:, None] - node) % modulus, differences)


def _projective_points(dimension: int, q: int) -> NDArray[np.int64]:
    """Return the points of PG(dimension, q), q prime, as sorted coordinates whose first nonzero entry is 1."""
    return np.array([v for v in product(range(q), repeat=dimension + 1) if next(filter(None, v), 0) == 1])


def _projective_lines(points: NDArray[np.int64], collinear: NDArray[np.bool_], q: int) -> Incidence:
    """Return the lines through the pairs of `points` that `collinear` marks, sorted by the points on them."""
    powers = q ** np.arange(points.shape[1])[::-1]
    index = np.full(q ** len(powers), -1)
    for factor in range(1, q):  # multiples of coordinates are the same point
        index[points * factor % q @ powers] = np.arange(len(points))
    first, second = _pairs(collinear).T
    others = [index[(points[first] + factor * points[second]) % q @ powers] for factor in range(q)]
    lines = np.unique(np.sort(np.stack([*others, second], axis=1), axis=1), axis=0)
    incident = np.zeros((len(points), len(lines)), dtype=bool)
    incident[lines.T, np.arange(len(lines))] = True
    return incident


def _hexagon(q: int) -> Incidence:
    """Return the split Cayley hexagon H(q) of order (q, q) for q = 2 or 3.

    Its points are the points of the quadric X0 X4 + X1 X5 + X2 X6 = X3^2 in PG(6, q); its lines are the quadric's lines
    whose Pluecker coordinates satisfy p12 = p34, p20 = p35, p01 = p36, p54 = p32, p65 = p30, p46 = p31.
    Sources: Tits, "Sur la trialite et certains groupes qui s'en deduisent", 1959; Van Maldeghem, "Generalized
    Polygons", 1998.
    """
    x = _projective_points(6, q).T
    x = x[:, (x[0] * x[4] + x[1] * x[5] + x[2] * x[6] - x[3] ** 2) % q == 0]
    polar = sum(np.outer(x[i], x[i + 4]) + np.outer(x[i + 4], x[i]) for i in range(3)) - 2 * np.outer(x[3], x[3])
    collinear = polar % q == 0
    equal = [((1, 2), (3, 4)), ((2, 0), (3, 5)), ((0, 1), (3, 6)), ((5, 4), (3, 2)), ((6, 5), (3, 0)), ((4, 6), (3, 1))]
    for (i, j), (k, m) in equal:
        first, second = np.outer(x[i], x[j]) - np.outer(x[j], x[i]), np.outer(x[k], x[m]) - np.outer(x[m], x[k])
        collinear &= (first - second) % q == 0
    return _projective_lines(x.T, collinear, q)


DISTANCE_REGULAR_FAMILIES = (
    Family("distreg", "distreg:4,m", "distreg:4,32", "distance-regular, degree 4, fifteen sizes m", plan_distreg),
)
