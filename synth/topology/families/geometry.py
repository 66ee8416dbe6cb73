"""Finite geometries and generalized polygons over prime fields, used to build distance-regular graphs."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.int64]
Permutation = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Geometry:
    """Points and lines numbered from 0. `flags` is int64[flags, 2]: sorted rows (point, line through the point)."""

    points: int
    lines: int
    flags: Matrix

    @staticmethod
    def of_incidence(incident: NDArray[np.bool_]) -> Geometry:
        """Return the geometry in which point p lies on line l if `incident[p, l]` is true."""
        return Geometry(len(incident), incident.shape[1], np.argwhere(incident))

    @property
    def incidence_edges(self) -> Matrix:
        """int64[flags, 2]: edges of the incidence graph, whose nodes are the points and then the lines."""
        edges: Matrix = self.flags + np.array([0, self.points])
        return edges

    @property
    def points_of_lines(self) -> Matrix:
        """Points on each line, ascending: int64[lines, points per line]. Lines must have equally many points."""
        by_line: Matrix = self.flags[np.argsort(self.flags[:, 1], kind="stable"), 0].reshape(self.lines, -1)
        return by_line

    @property
    def lines_of_points(self) -> Matrix:
        """Lines through each point, ascending: int64[points, lines per point]. Points must have equally many lines."""
        return self.flags[:, 1].reshape(self.points, -1)

    def lines_with(self, points: Matrix) -> Permutation:
        """Return, for each row of `points`, the line with exactly these points. Raises ValueError if there is none."""
        powers = self.points ** np.arange(points.shape[1])
        codes = self.points_of_lines @ powers
        order = np.argsort(codes)
        lines = order[np.searchsorted(codes, np.sort(points, axis=1) @ powers, sorter=order) % self.lines]
        if not np.array_equal(self.points_of_lines[lines], np.sort(points, axis=1)):
            raise ValueError("the points must be those of a line")
        return lines

    def moved(self, move: Permutation) -> Permutation:
        """Return the permutation of points, followed by lines, that results if each point p moves to `move[p]`."""
        return np.concatenate([move, self.points + self.lines_with(move[self.points_of_lines])])


def plane_of_differences(modulus: int, differences: tuple[int, ...]) -> Geometry:
    """Return the plane with `modulus` points and lines in which p lies on l if p - l is one of the `differences`."""
    node = np.arange(modulus)
    return Geometry.of_incidence(np.isin((node[:, None] - node) % modulus, differences))


def affine_plane_of_order_4() -> Geometry:
    """Return AG(2, 4) without its vertical lines: point 4 x + y is on line 4 m + c if y = m x + c over GF(4)."""
    x, y, m, c = np.meshgrid(*[np.arange(4)] * 4, indexing="ij")
    return Geometry.of_incidence((y == (GF4_TIMES[m, x] ^ c)).reshape(16, 16))


def quadrangle_of_order_2() -> Geometry:
    """Return GQ(2, 2): points are the 15 pairs of six letters, lines the 15 partitions of the letters into pairs."""
    pairs = list(combinations(range(6), 2))
    splits = [split for split in combinations(pairs, 3) if len(set().union(*split)) == 6]
    return Geometry.of_incidence(np.array([[pair in split for split in splits] for pair in pairs]))


def edge_graph(edges: Matrix) -> Matrix:
    """Return the edges of the undirected line graph (pairs of `edges` that share an end) as int64[…, 2]."""
    ends = edges[:, None, :, None] == edges[None, :, None, :]
    return np.argwhere(np.triu(ends.any(axis=(2, 3)), 1))


def subset_edges(low: list[frozenset[int]], high: list[frozenset[int]]) -> Matrix:
    """Return all index pairs (i, j) for which `low[i]` is a subset of `high[j]`, as int64[…, 2]."""
    return np.argwhere(np.array([[small < large for large in high] for small in low]))


def disjoint_edges(sets: list[frozenset[int]]) -> Matrix:
    """Return all index pairs i < j for which the `sets` are disjoint, as int64[…, 2]."""
    return np.argwhere(np.triu([[not (first & second) for second in sets] for first in sets], 1))


def moved_sets(sets: list[frozenset[int]], letters: tuple[int, ...]) -> Permutation:
    """Return the permutation of `sets` that results if letter i becomes `letters[i]`."""
    position = {members: index for index, members in enumerate(sets)}
    return np.array([position[frozenset(letters[letter] for letter in members)] for members in sets])


GF4_TIMES = np.array([[0, 0, 0, 0], [0, 1, 2, 3], [0, 2, 3, 1], [0, 3, 1, 2]])
"""Multiplication of GF(4), elements written as polynomials in bits; addition is bitwise exclusive or."""


@dataclass(frozen=True, slots=True, eq=False)
class ProjectivePoints:
    """Points of a projective space over the integers modulo the prime `q`.

    coordinates: int64[points, dimension + 1]; the first nonzero coordinate of each point is 1
    """

    coordinates: Matrix
    q: int

    @staticmethod
    def all(dimension: int, q: int) -> ProjectivePoints:
        """Return the points of PG(dimension, q), in order."""
        vectors = np.stack(np.unravel_index(np.arange(q ** (dimension + 1)), (q,) * (dimension + 1)), axis=1)[1:]
        first = vectors[np.arange(len(vectors)), (vectors != 0).argmax(axis=1)]
        return ProjectivePoints(vectors[first == 1], q)

    def index(self, vectors: Matrix) -> Permutation:
        """Return, for each row of `vectors`, the index of the point with these coordinates (up to a factor), or -1."""
        powers = self.q ** np.arange(self.coordinates.shape[1])[::-1]
        of_code = np.full(self.q ** len(powers), -1)
        for factor in range(1, self.q):
            of_code[self.coordinates * factor % self.q @ powers] = np.arange(len(self.coordinates))
        indices: Permutation = of_code[vectors % self.q @ powers]
        return indices

    def moved(self, matrix: Matrix) -> Permutation:
        """Return the image (point index) of each point under the linear map `matrix`."""
        return self.index(self.coordinates @ matrix.T)

    def lines(self, collinear: NDArray[np.bool_]) -> Geometry:
        """Return the geometry of the projective lines through any two points with a true entry in `collinear`."""
        first, second = np.argwhere(np.triu(collinear, 1)).T
        start, end = self.coordinates[first], self.coordinates[second]
        others = [self.index(start + factor * end) for factor in range(self.q)]
        lines = np.unique(np.sort(np.stack([*others, second], axis=1), axis=1), axis=0)
        incident = np.zeros((len(self.coordinates), len(lines)), dtype=bool)
        incident[lines.T, np.arange(len(lines))] = True
        return Geometry.of_incidence(incident)


def quadrangle_of_order_3() -> tuple[Geometry, tuple[Permutation, ...]]:
    """Return GQ(3, 3) and symmetries: points of PG(3, 3), and lines on which x0 y1 - x1 y0 + x2 y3 - x3 y2 = 0.

    The symmetries are transvections x -> x + (x, a) a of the form; together they map any flag (point and line through
    it) to any other. No symmetry maps points to lines, because W(q) is self-dual for even q only.
    """
    points = ProjectivePoints.all(3, 3)
    form = np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]])
    geometry = points.lines(points.coordinates @ form @ points.coordinates.T % 3 == 0)
    centres = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    moves = (points.moved(np.eye(4, dtype=np.int64) + np.outer(centre, centre @ form.T)) for centre in centres)
    return geometry, tuple(geometry.moved(move) for move in moves)


def hexagon(q: int) -> tuple[Geometry, tuple[Permutation, ...]]:
    """Return the split Cayley hexagon H(q) of order (q, q) for q = 2 or 3, and symmetries of its points, then lines.

    Its points are the points of the quadric X0 X4 + X1 X5 + X2 X6 = X3^2 in PG(6, q); its lines are the quadric's lines
    whose Pluecker coordinates satisfy p12 = p34, p20 = p35, p01 = p36, p54 = p32, p65 = p30, p46 = p31. The symmetries
    generate G2(q) and map any flag (point and line through it) to any other. For q = 3, they include a duality, which
    exchanges points and lines.
    Sources: Tits, "Sur la trialite et certains groupes qui s'en deduisent", 1959; Van Maldeghem, "Generalized
    Polygons", 1998.
    """
    points = ProjectivePoints.all(6, q)
    x = points.coordinates.T
    on_quadric = (x[0] * x[4] + x[1] * x[5] + x[2] * x[6] - x[3] ** 2) % q == 0
    points = ProjectivePoints(points.coordinates[on_quadric], q)
    x = points.coordinates.T
    polar = sum(np.outer(x[i], x[i + 4]) + np.outer(x[i + 4], x[i]) for i in range(3)) - 2 * np.outer(x[3], x[3])
    collinear = polar % q == 0
    equal = [((1, 2), (3, 4)), ((2, 0), (3, 5)), ((0, 1), (3, 6)), ((5, 4), (3, 2)), ((6, 5), (3, 0)), ((4, 6), (3, 1))]
    for (i, j), (k, m) in equal:
        first, second = np.outer(x[i], x[j]) - np.outer(x[j], x[i]), np.outer(x[k], x[m]) - np.outer(x[m], x[k])
        collinear &= (first - second) % q == 0
    geometry = points.lines(collinear)
    moves = tuple(geometry.moved(points.moved(matrix)) for matrix in _hexagon_matrices())
    return geometry, (*moves, _duality(points, geometry)) if q == 3 else moves


def _hexagon_matrices() -> list[Matrix]:
    """Return four generators of G2(q) as 7 x 7 matrices on V + 1 + V* (coordinates 0 to 2, 3, and 4 to 6).

    They are the rotation of the three coordinates, the exchange of V and V*, a transvection of SL3(q), and a short root
    element (w, s, f) -> (w + 2 s v + f(v) v, s + f(v), f + v x w), where v is the first unit vector.
    """
    turn = np.eye(7, dtype=np.int64)[[2, 0, 1, 3, 6, 4, 5]]
    exchange = np.eye(7, dtype=np.int64)[[4, 5, 6, 3, 0, 1, 2]]
    exchange[3, 3] = -1
    long_root, short_root = np.eye(7, dtype=np.int64), np.eye(7, dtype=np.int64)
    long_root[0, 1], long_root[5, 4] = 1, -1
    short_root[0, 3], short_root[0, 4], short_root[3, 4], short_root[5, 2], short_root[6, 1] = 2, 1, 1, -1, 1
    return [turn, exchange, long_root, short_root]


def _duality(points: ProjectivePoints, geometry: Geometry) -> Permutation:
    """Return a symmetry of H(3) that exchanges points and lines.

    In characteristic 3, the long roots of G2 are the short roots of another G2: a line's Pluecker coordinates at the
    long roots, with one of weight 0, are the coordinates of a point, and lines that meet become collinear points.
    """
    on_line = points.coordinates[geometry.points_of_lines[:, :2]]

    def pluecker(i: int, j: int) -> Matrix:
        product: Matrix = on_line[:, 0, i] * on_line[:, 1, j] - on_line[:, 0, j] * on_line[:, 1, i]
        return product

    roots = [(0, 5), (1, 6), (2, 4), (4, 1), (5, 2), (6, 0)]
    columns = [pluecker(*root) for root in roots]
    columns.insert(3, pluecker(2, 6) - pluecker(1, 5))
    point_of_line = points.index(np.stack(columns, axis=1))
    line_of_point = geometry.lines_with(point_of_line[geometry.lines_of_points])
    return np.concatenate([geometry.points + line_of_point, point_of_line])
