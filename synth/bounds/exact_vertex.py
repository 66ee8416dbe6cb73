"""A vertex of a linear program in rationals, from what a solver says in floats about tight rows and variables.

A guess like any other: callers check what they do with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chorale.synth.sparse_matrix import Floats, SparseMatrix

MAX_VARIABLES = 160
"""Elimination in rationals takes long beyond."""
_ZERO = 1e-13
_TIGHT = 1e-10
_FREE_DENOMINATOR = 10**6

Row = dict[int, Fraction]
"""Coefficients by column; the bound of the row has the column -1."""


def exact_vertex(matrix: SparseMatrix, bound: Sequence[Fraction], point: Floats) -> list[Fraction] | None:
    """Return the x that meets with equality the rows of `matrix` @ x <= `bound` that `point` meets, nearly.

    Variables that are 0 stay 0. Where the rows leave a variable open, it is a fraction close to its value. The
    coefficients are whole numbers. None for more than `MAX_VARIABLES` variables above 0. O(variables ^ 2 * rows).
    """
    used = np.flatnonzero(point > _ZERO * point.max(initial=0.0)).tolist()
    if len(used) > MAX_VARIABLES:
        return None
    pivots = _eliminated(_tight_rows(matrix, bound, point, set(used)))
    values = {column: Fraction(float(point[column])).limit_denominator(_FREE_DENOMINATOR) for column in used}
    for column, row in reversed(pivots):
        rest = sum((value * values[other] for other, value in row.items() if other not in (-1, column)), Fraction(0))
        values[column] = row.get(-1, Fraction(0)) - rest
    return [max(Fraction(0), values.get(column, Fraction(0))) for column in range(len(point))]


def _tight_rows(matrix: SparseMatrix, bound: Sequence[Fraction], point: Floats, used: set[int]) -> list[Row]:
    sizes = matrix.absolute() @ point
    slack = np.array([float(value) for value in bound]) - matrix @ point
    rows, begins = list[Row](), matrix.bounds_of_rows().tolist()
    for index in np.flatnonzero(slack <= _TIGHT * sizes).tolist():
        span = slice(begins[index], begins[index + 1])
        pairs = zip(matrix.column[span].tolist(), matrix.value[span].tolist(), strict=True)
        row = {column: Fraction(round(value)) for column, value in pairs if column in used}
        if row:
            rows.append(row | {-1: bound[index]})
    return rows


def _eliminated(rows: list[Row]) -> list[tuple[int, Row]]:
    """Return (pivot column, row with 1 there and nothing in earlier pivots), in order; rows that contradict are left
    out."""
    pivots: list[tuple[int, Row]] = []
    for given in sorted(rows, key=len):
        row = dict(given)
        for column, pivot in pivots:
            factor = row.pop(column, Fraction(0))
            if factor:
                for other, value in pivot.items():
                    if other != column:
                        row[other] = row.get(other, Fraction(0)) - factor * value
        row = {column: value for column, value in row.items() if value or column == -1}
        column = max((column for column in row if column != -1), default=-1)
        if column != -1:
            lead = row[column]
            pivots.append((column, {other: value / lead for other, value in row.items()}))
    return pivots
