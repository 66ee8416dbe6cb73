"""The only file that calls the linear-program solver: HiGHS, in floats whose results callers must check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import Unavailable
from chorale.synth.lazy_modules import highspy

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


def minimum(objective: Floats, matrix: SparseMatrix, bound: Floats, way_out: str) -> tuple[Floats, Floats]:
    """Return the x >= 0 with matrix @ x <= bound that minimises objective @ x, and the marginals of the rows.

    Interior point, then a vertex. Both results are right up to the solver's tolerances; x may be a little below 0.
    Raises Unavailable, with `way_out`, where the solver finds no optimum.
    """
    return GrowingProgram(objective, matrix, bound, way_out).minimum()


class GrowingProgram:
    """The program of `minimum`, to which rows are added between one optimum and the next.

    A new optimum is looked for from the vertex of the one before (dual simplex), which takes few steps where few rows
    are new. Same rows in the same order, same results.
    """

    def __init__(self, objective: Floats, matrix: SparseMatrix, bound: Floats, way_out: str) -> None:
        # HiGHS' own module and not SciPy's door to it: that takes ten times as long to import as a small program to
        # solve, and forgets the vertex.
        self._solver = highspy.Highs()
        for option, value in (("output_flag", False), ("solver", "ipm"), ("presolve", "on")):
            self._solver.setOptionValue(option, value)
        self._solver.passModel(_model(objective, matrix, bound))
        self._way_out = way_out

    def add_rows(self, matrix: SparseMatrix, bound: Floats) -> None:
        """Add rows below the others."""
        least = np.full(matrix.rows, -highspy.kHighsInf)
        begins = matrix.bounds_of_rows()[:-1].astype(np.int32)
        entries = len(matrix.value), begins, matrix.column.astype(np.int32), matrix.value
        self._solver.addRows(matrix.rows, least, bound, *entries)
        self._solver.setOptionValue("solver", "simplex")

    def minimum(self) -> tuple[Floats, Floats]:
        """Return what the function `minimum` does, for the rows so far."""
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            rule, value = "the linear-program solver must find an optimum", self._solver.modelStatusToString(status)
            raise Unavailable(rule, f"HiGHS: {value}", self._way_out)
        solution = self._solver.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)


def _model(objective: Floats, matrix: SparseMatrix, bound: Floats) -> Any:
    program = highspy.HighsLp()
    program.num_row_, program.num_col_ = matrix.rows, matrix.columns
    program.col_cost_ = objective
    program.col_lower_, program.col_upper_ = np.zeros(matrix.columns), np.full(matrix.columns, highspy.kHighsInf)
    program.row_lower_, program.row_upper_ = np.full(matrix.rows, -highspy.kHighsInf), bound
    entries = program.a_matrix_
    entries.format_ = highspy.MatrixFormat.kColwise
    entries.num_row_, entries.num_col_ = matrix.rows, matrix.columns
    order = np.argsort(matrix.column, kind="stable")
    entries.start_ = np.searchsorted(matrix.column[order], np.arange(matrix.columns + 1)).astype(np.int32)
    entries.index_, entries.value_ = matrix.row[order].astype(np.int32), matrix.value[order]
    return program
