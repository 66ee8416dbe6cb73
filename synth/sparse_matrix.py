"""A matrix of few numbers, as linear programs take it: its entries, row after row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SparseMatrix:
    """float64[rows, columns]: int64[n] rows in order, int64[n] columns that ascend within a row, float64[n] values."""

    rows: int
    columns: int
    row: Places
    column: Places
    value: Floats

    def __matmul__(self, vector: Floats) -> Floats:
        """Return float64[rows]. O(n)."""
        return np.asarray(np.bincount(self.row, self.value * vector[self.column], self.rows), dtype=np.float64)

    def sums_of_columns(self, weights: NDArray[np.number]) -> Floats:
        """Return float64[columns]: the transposed matrix @ `weights`, one for each row. O(n)."""
        return np.asarray(np.bincount(self.column, self.value * weights[self.row], self.columns), dtype=np.float64)

    def absolute(self) -> SparseMatrix:
        """Return the matrix of absolute values."""
        return SparseMatrix(self.rows, self.columns, self.row, self.column, np.abs(self.value))

    def negated(self) -> SparseMatrix:
        """Return the matrix with the other sign."""
        return SparseMatrix(self.rows, self.columns, self.row, self.column, -self.value)

    def bounds_of_rows(self) -> Places:
        """Return int64[rows + 1]: the entries of row r are those from the r-th on, up to the next."""
        return np.searchsorted(self.row, np.arange(self.rows + 1))


def of_entries(
    row: NDArray[np.integer], column: NDArray[np.integer], value: Floats, rows: int, columns: int
) -> SparseMatrix:
    """Return the matrix of these entries in any order; those of one place are added. O(n log n)."""
    place = row.astype(np.int64) * columns + column
    order = np.argsort(place, kind="stable")
    place, value = place[order], value[order].astype(np.float64)
    first = np.flatnonzero(np.diff(place, prepend=-1))
    if len(first) < len(place):
        place, value = place[first], np.add.reduceat(value, first)
    return SparseMatrix(rows, columns, place // columns, place % columns, value)


def of_dense(matrix: Floats) -> SparseMatrix:
    """Return the entries of `matrix` that are not 0."""
    row, column = np.nonzero(matrix)
    rows, columns = matrix.shape
    return SparseMatrix(rows, columns, row, column, matrix[row, column])


def stacked(parts: Sequence[SparseMatrix]) -> SparseMatrix:
    """Return the rows of `parts`, one after the other; the widest says how many columns there are."""
    first = np.cumsum([0, *(part.rows for part in parts)])
    row = np.concatenate([part.row + start for part, start in zip(parts, first[:-1].tolist(), strict=True)])
    column, value = (np.concatenate([getattr(part, name) for part in parts]) for name in ("column", "value"))
    return SparseMatrix(int(first[-1]), max(part.columns for part in parts), row, column, value)
