"""Solves linear programs with HiGHS in floating point. Only this module calls the solver; callers check the results."""

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
    """Return the sparse matrix with `value[i]` at (`row[i]`, `column[i]`). Adds values at equal places. O(n log n)."""
    return sparse.coo_array((np.asarray(value, dtype=np.float64), (row, column)), shape=(rows, columns)).tocsr()


def minimum(objective: Floats, matrix: SparseMatrix, bound: Floats, way_out: str) -> tuple[Floats, Floats]:
    """Minimise objective @ x subject to matrix @ x <= bound and x >= 0; return (x, dual value of each row).

    Uses the interior-point method, then crosses over to a vertex. Both results are accurate up to the solver's
    tolerances; x may be slightly below 0. Raises Unavailable with the hint `way_out` if the solver finds no optimum.
    """
    return GrowingProgram(objective, matrix, bound, way_out).minimum()


class GrowingProgram:
    """A linear program as in the function `minimum`, to which rows can be added after it has been solved.

    After rows are added, the solver continues from its previous solution (dual simplex), so a few new rows take only a
    few steps. Adding the same rows in the same order always gives the same result.
    """

    def __init__(self, objective: Floats, matrix: SparseMatrix, bound: Floats, way_out: str) -> None:
        # Use SciPy's HiGHS module directly, because `scipy.optimize` does not keep the vertex.
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
        rows = matrix.shape[0]
        entries = matrix.nnz, matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32), matrix.data
        self._solver.addRows(rows, np.full(rows, -highspy.kHighsInf), bound, *entries)
        self._solver.setOptionValue("solver", "simplex")

    def minimum(self) -> tuple[Floats, Floats]:
        """Solve the program with all rows added so far; return (x, dual value of each row)."""
        self._solver.run()
        status = self._solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            rule, value = "the linear program was not solved: {}", self._solver.modelStatusToString(status)
            raise Unavailable(rule, f"HiGHS: {value}", self._way_out)
        solution = self._solver.getSolution()
        return np.array(solution.col_value), np.array(solution.row_dual)
