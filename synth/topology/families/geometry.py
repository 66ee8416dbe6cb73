"""Finite geometries and graphs made from them: the raw material of distance-regular graphs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.int64]
Permutation = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Points 0, 1, … and lines 0, 1, …; `flags` is int64[flags, 2]: each row a point and a line through it, sorted."""

    points: int
    lines: int
    flags: Matrix

    @staticmethod
    def of_incidence(incident: NDArray[np.bool_]) -> Geometry:
        """Return the geometry in which point p lies on line l where `incident[p, l]`."""
        return Geometry(len(incident), incident.shape[1], np.argwhere(incident))

    @property
    def incidence_edges(self) -> Matrix:
        """int64[flags, 2]: edges of the incidence graph, whose nodes are the points and then the lines."""
        edges: Matrix = self.flags + np.array([0, self.points])
        return edges


def plane_of_differences(modulus: int, differences: tuple[int, ...]) -> Geometry:
    """Return the plane on `modulus` points and lines where point p is on line l if p - l is one of `differences`."""
    node = np.arange(modulus)
    return Geometry.of_incidence(np.isin((node[:, None] - node) % modulus, differences))


def affine_plane_of_order_4() -> Geometry:
    """Return AG(2, 4) without its vertical lines: point 4 x + y is on line 4 m + c if y = m x + c over GF(4)."""
    x, y, m, c = np.meshgrid(*[np.arange(4)] * 4, indexing="ij")
    return Geometry.of_incidence((y == (GF4_TIMES[m, x] ^ c)).reshape(16, 16))


def quadrangle_of_order_2() -> Geometry:
    """Return GQ(2, 2): points are the 15 pairs out of six letters, lines the 15 splits of the letters into pairs."""
    pairs = list(combinations(range(6), 2))
    splits = [split for split in combinations(pairs, 3) if len(set().union(*split)) == 6]
    return Geometry.of_incidence(np.array([[pair in split for split in splits] for pair in pairs]))


def quadrangle_of_order_3() -> Geometry:
    """Return GQ(3, 3): points of PG(3, 3) and its lines on which the form x0 y1 - x1 y0 + x2 y3 - x3 y2 vanishes."""
    points = _projective_points(4, 3)
    form = np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]])
    return _geometry_of_lines(points, points @ form @ points.T % 3 == 0, 3)


def hexagon(q: int) -> Geometry:
    """Return the split Cayley hexagon H(q) for a prime q, a generalized hexagon of order (q, q).

    Points are those of the quadric X0 X4 + X1 X5 + X2 X6 = X3^2 in PG(6, q); lines are its lines whose Pluecker
    coordinates satisfy p12 = p34, p20 = p35, p01 = p36, p54 = p32, p65 = p30, p46 = p31.
    Source: Tits, "Sur la trialite et certains groupes qui s'en deduisent", 1959.
    """
    points = _projective_points(7, q)
    x = points.T
    points = points[(x[0] * x[4] + x[1] * x[5] + x[2] * x[6] - x[3] ** 2) % q == 0]
    x = points.T

    def pluecker(i: int, j: int) -> Matrix:
        return np.asarray(np.outer(x[i], x[j]) - np.outer(x[j], x[i]))

    equal = [((1, 2), (3, 4)), ((2, 0), (3, 5)), ((0, 1), (3, 6)), ((5, 4), (3, 2)), ((6, 5), (3, 0)), ((4, 6), (3, 1))]
    polar = sum(np.outer(x[i], x[i + 4]) + np.outer(x[i + 4], x[i]) for i in range(3)) - 2 * np.outer(x[3], x[3])
    collinear = polar % q == 0
    for left, right in equal:
        collinear &= (pluecker(*left) - pluecker(*right)) % q == 0
    return _geometry_of_lines(points, collinear, q)


def edge_graph(edges: Matrix) -> Matrix:
    """Return int64[…, 2], the edges of the undirected line graph of a simple graph: `edges` that share an end."""
    ends = edges[:, None, :, None] == edges[None, :, None, :]
    return np.argwhere(np.triu(ends.any(axis=(2, 3)), 1))


def subset_edges(low: list[frozenset[int]], high: list[frozenset[int]]) -> Matrix:
    """Return int64[…, 2]: pairs of indices with `low[i]` inside `high[j]`."""
    return np.argwhere(np.array([[small < large for large in high] for small in low]))


def disjoint_edges(sets: list[frozenset[int]]) -> Matrix:
    """Return int64[…, 2]: pairs of indices i < j of disjoint `sets`."""
    return np.argwhere(np.triu([[not (one & other) for other in sets] for one in sets], 1))


def moved_sets(sets: list[frozenset[int]], letters: tuple[int, ...]) -> Permutation:
    """Return the permutation of `sets` that follows when letter i becomes `letters[i]`."""
    position = {one: index for index, one in enumerate(sets)}
    return np.array([position[frozenset(letters[letter] for letter in one)] for one in sets])


GF4_TIMES = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]])
"""Multiplication of GF(4), elements written as polynomials in bits; addition is bitwise exclusive or."""


def _projective_points(dimension: int, q: int) -> Matrix:
    """Return the points of PG(dimension - 1, q) by coordinates whose first one that is not 0 is 1, in order."""
    vectors = np.stack(np.unravel_index(np.arange(q**dimension), (q,) * dimension), axis=1)[1:]
    first = vectors[np.arange(len(vectors)), (vectors != 0).argmax(axis=1)]
    points: Matrix = vectors[first == 1]
    return points


def _geometry_of_lines(points: Matrix, collinear: NDArray[np.bool_], q: int) -> Geometry:
    """Return the geometry of the projective lines through any two of `points` that are `collinear`, q prime."""
    code_of = np.full(q ** points.shape[1], -1)
    place = q ** np.arange(points.shape[1])[::-1]
    for factor in range(1, q):
        code_of[points * factor % q @ place] = np.arange(len(points))
    first, second = np.argwhere(np.triu(collinear, 1)).T
    others = [code_of[(points[first] + factor * points[second]) % q @ place] for factor in range(q)]
    lines = np.unique(np.sort(np.stack([*others, second], axis=1), axis=1), axis=0)
    incident = np.zeros((len(points), len(lines)), dtype=bool)
    incident[lines.T, np.arange(len(lines))] = True
    return Geometry.of_incidence(incident)
