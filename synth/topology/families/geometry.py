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

    @property
    def points_of_lines(self) -> Matrix:
        """int64[lines, points on each]: rising; all lines must have equally many points."""
        by_line: Matrix = self.flags[np.argsort(self.flags[:, 1], kind="stable"), 0].reshape(self.lines, -1)
        return by_line

    @property
    def lines_of_points(self) -> Matrix:
        """int64[points, lines through each]: rising; all points must be on equally many lines."""
        return self.flags[:, 1].reshape(self.points, -1)

    def lines_with(self, points: Matrix) -> Permutation:
        """Return the line with each row of `points`, which are all of its points, in any order."""
        place = self.points ** np.arange(points.shape[1])
        codes = self.points_of_lines @ place
        order = np.argsort(codes)
        found = order[np.searchsorted(codes, np.sort(points, axis=1) @ place, sorter=order) % self.lines]
        if not np.array_equal(self.points_of_lines[found], np.sort(points, axis=1)):
            raise ValueError("the points must be those of a line")
        return found

    def moved(self, move: Permutation) -> Permutation:
        """Return what the collineation that takes point p to `move[p]` does to points and then lines."""
        return np.concatenate([move, self.points + self.lines_with(move[self.points_of_lines])])


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
