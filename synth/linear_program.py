"""Linear programs, solved by HiGHS in floating point. No other file calls the solver; callers check its results."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import Unavailable
from chorale.synth.lazy_modules import highspy, sparse

Floats = NDArray[np.float64]
SparseMatrix: TypeAlias = "sparse.csr_array[np.float64]"


def of_entries(
    row: NDArray[np.integer], column: NDArray[np.integer], value: Floats, rows: int, columns: int
) -> SparseMatrix:
    """Return the matrix of these entries in any order; entries at the same place are added. O(n log n)."""
    return sparse.coo_array((np.asarray(value, dtype=np.float64), (row, column)), shape=(rows, columns)).tocsr()


def minimum(objective: Floats, matrix: SparseMatrix, bound: Floats, way_out: str) -> tuple[Floats, Floats]:
    """Return the x >= 0 with matrix @ x <= bound that minimises objective @ x, and the marginals of the rows.

    Found by the interior-point method, then moved to a vertex. Both results are right up to the solver's tolerances; x
    may be a little below 0. Raises Unavailable, with `way_out`, if the solver finds no optimum.
    """
    return GrowingProgram(objective, matrix, bound, way_out).minimum()


class GrowingProgram:
    """The program of `minimum`, to which rows can be added after each optimum.

    The search for the next optimum starts at the previous vertex (dual simplex), which takes few steps if few rows are
    new. The same rows in the same order give the same results.
    """

    def __init__(self, objective: Floats, matrix: SparseMatrix, bound: Floats, way_out: str) -> None:
        # HiGHS' own module, because `scipy.optimize` forgets the vertex.
        self._solver = highspy.Highs()
        for option, value in (("output_flag", False), ("solver", "ipm"), ("presolve", "on")):
            self._solver.setOptionValue(option, value)
        rows, columns = matrix.shape
        program = highspy.HighsLp()
        program.num_row_, program.num_col_ = rows, columns
        program.col_cost_ = objective
        program.col_lower_, program.col_upper_ = np.zeros(columns), np.full(columns, highspy.kHighsInf)
        program.row_lower_, program.row_upper_ = np.full(rows, -highspy.kHighsInf), bound
        entries, by_column = program.a_matrix_, matrix.tocsc()
        entries.format_ = highspy.MatrixFormat.kColwise
        entries.num_row_, entries.num_col_ = rows, columns
        entries.start_, entries.index_ = by_column.indptr.astype(np.int32), by_column.indices.astype(np.int32)
        entries.value_ = by_column.data
        self._solver.passModel(program)
        self._way_out = way_out

    def add_rows(self, matrix: SparseMatrix, bound: Floats) -> None:
        """Add rows below the existing ones."""
        rows = matrix.shape[0]
        entries = matrix.nnz, matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32), matrix.data
        self._solver.addRows(rows, np.full(rows, -highspy.kHighsInf), bound, *entries)
        self._solver.setOptionValue("solver", "simplex")

    def minimum(self) -> tuple[Floats, Floats]:
        """Return the optimum and the marginals of the rows so far, as the function `minimum` does."""
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            rule, value = "the linear program was not solved: {}", self._solver.modelStatusToString(status)
            raise Unavailable(rule, f"HiGHS: {value}", self._way_out)
        solution = self._solver.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)
