"""Programs that grow against ones that are solved from nothing, and against SciPy."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.optimize import linprog
from scipy.sparse import csr_array

from chorale.synth.errors import Unavailable
from chorale.synth.linear_program import GrowingProgram, minimum


@st.composite
def programs(draw):
    """An objective that has an optimum, and rows that allow x = 0."""
    rows, columns = draw(st.integers(2, 8)), draw(st.integers(1, 6))
    numbers = st.integers(-3, 3)
    matrix = np.array(draw(st.lists(numbers, min_size=rows * columns, max_size=rows * columns)), dtype=float)
    matrix = np.vstack([np.eye(columns), matrix.reshape(rows, columns)])
    objective = np.array(draw(st.lists(numbers, min_size=columns, max_size=columns)), dtype=float)
    bound = np.array(draw(st.lists(st.integers(0, 5), min_size=len(matrix), max_size=len(matrix))), dtype=float)
    return objective, matrix, bound


@given(programs())
def test_optimum_and_marginals_are_scipys(program):
    objective, matrix, bound = program
    found, marginals = minimum(objective, csr_array(matrix), bound, "none")
    expected = linprog(objective, A_ub=matrix, b_ub=bound, bounds=(0, None), method="highs-ipm")
    assert objective @ found == pytest.approx(expected.fun, abs=1e-7)
    assert marginals @ bound == pytest.approx(expected.fun, abs=1e-7)


@given(programs(), st.integers(1, 6))
def test_rows_that_are_added_count_like_those_that_were_there(program, first):
    objective, matrix, bound = program
    columns = len(objective)
    begun = columns + min(first, len(matrix) - columns - 1)
    growing = GrowingProgram(objective, csr_array(matrix[:begun]), bound[:begun], "none")
    growing.minimum()
    for row in range(begun, len(matrix)):
        growing.add_rows(csr_array(matrix[row : row + 1]), bound[row : row + 1])
        found, marginals = growing.minimum()
        whole, _ = minimum(objective, csr_array(matrix[: row + 1]), bound[: row + 1], "none")
        assert objective @ found == pytest.approx(objective @ whole, abs=1e-7)
        assert marginals @ bound[: row + 1] == pytest.approx(objective @ whole, abs=1e-7)
        assert (matrix[: row + 1] @ found <= bound[: row + 1] + 1e-7).all()


def test_a_program_without_an_optimum_is_said():
    with pytest.raises(Unavailable, match="the linear program was not solved: HiGHS: Unbounded"):
        minimum(np.array([-1.0]), csr_array(np.array([[-1.0]])), np.array([0.0]), "take another")
