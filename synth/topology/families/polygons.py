"""Generalized polygons in projective spaces over prime fields, and symmetries that take any of their flags to any."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.families.geometry import Geometry, Matrix, Permutation


@dataclass(frozen=True, slots=True, eq=False)
class ProjectivePoints:
    """Points of a projective space over the integers modulo the prime `q`.

    coordinates: int64[points, dimension + 1]; the first one that is not 0 is 1
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
        """Return which point each of `vectors` (by row, any multiple) is, -1 for none of these."""
        place = self.q ** np.arange(self.coordinates.shape[1])[::-1]
        of_code = np.full(self.q ** len(place), -1)
        for factor in range(1, self.q):
            of_code[self.coordinates * factor % self.q @ place] = np.arange(len(self.coordinates))
        found: Permutation = of_code[vectors % self.q @ place]
        return found

    def moved(self, matrix: Matrix) -> Permutation:
        """Return where the linear map `matrix` takes each point."""
        return self.index(self.coordinates @ matrix.T)

    def lines(self, collinear: NDArray[np.bool_]) -> Geometry:
        """Return the geometry of the projective lines through any two points that are `collinear`."""
        first, second = np.argwhere(np.triu(collinear, 1)).T
        start, end = self.coordinates[first], self.coordinates[second]
        others = [self.index(start + factor * end) for factor in range(self.q)]
        lines = np.unique(np.sort(np.stack([*others, second], axis=1), axis=1), axis=0)
        incident = np.zeros((len(self.coordinates), len(lines)), dtype=bool)
        incident[lines.T, np.arange(len(lines))] = True
        return Geometry.of_incidence(incident)


def quadrangle_of_order_3() -> tuple[Geometry, tuple[Permutation, ...]]:
    """Return GQ(3, 3) and collineations: points of PG(3, 3) and its lines on which x0 y1 - x1 y0 + x2 y3 - x3 y2 = 0.

    The collineations are transvections x -> x + (x, a) a of the form. They take any flag to any other; nothing takes
    points to lines, because W(q) is its own dual for even q only.
    """
    points = ProjectivePoints.all(3, 3)
    form = np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 1], [0, 0, -1, 0]])
    geometry = points.lines(points.coordinates @ form @ points.coordinates.T % 3 == 0)
    centres = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 1, 0]])
    moves = (points.moved(np.eye(4, dtype=np.int64) + np.outer(centre, centre @ form.T)) for centre in centres)
    return geometry, tuple(geometry.moved(move) for move in moves)


def hexagon(q: int) -> tuple[Geometry, tuple[Permutation, ...]]:
    """Return the split Cayley hexagon H(q) for q = 2 or 3, of order (q, q), and symmetries of points and then lines.

    Points are those of the quadric X0 X4 + X1 X5 + X2 X6 = X3^2 in PG(6, q); lines are its lines whose Pluecker
    coordinates satisfy p12 = p34, p20 = p35, p01 = p36, p54 = p32, p65 = p30, p46 = p31. The collineations generate
    G2(q): they take any flag to any other. For q = 3 there is a duality besides; for q = 2 there is none.
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
        left, right = np.outer(x[i], x[j]) - np.outer(x[j], x[i]), np.outer(x[k], x[m]) - np.outer(x[m], x[k])
        collinear &= (left - right) % q == 0
    geometry = points.lines(collinear)
    moves = tuple(geometry.moved(points.moved(matrix)) for matrix in _hexagon_matrices())
    return geometry, (*moves, _duality(points, geometry)) if q == 3 else moves


def _hexagon_matrices() -> list[Matrix]:
    """Return generators of G2(q) on V + 1 + V*, coordinates 0 to 2, 3, and 4 to 6.

    The turn of the three coordinates, the exchange of V and V*, a transvection of SL3(q), and a short root element
    (w, s, f) -> (w + 2 s v + f(v) v, s + f(v), f + v x w) with v the first unit vector.
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

    In characteristic 3 the long roots of G2 are short roots of another one: a line's Pluecker coordinates at the long
    roots, with one of weight 0, are those of a point, and lines that meet become collinear points.
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
