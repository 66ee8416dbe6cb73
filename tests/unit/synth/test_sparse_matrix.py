"""Matrices of entries against dense ones."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.linear_program import of_dense, of_entries, stacked


@st.composite
def entries(draw):
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    place = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1), st.integers(-4, 4))
    listed = draw(st.lists(place, max_size=20))
    row, column, value = np.array(listed, dtype=np.int64).reshape(-1, 3).T
    dense = np.zeros((rows, columns))
    np.add.at(dense, (row, column), value)
    return of_entries(row, column, value.astype(float), rows, columns), dense


@given(entries(), st.randoms(use_true_random=False))
def test_products_and_sums_are_those_of_the_dense_matrix(pair, random):
    matrix, dense = pair
    vector = np.array([random.randint(-9, 9) for _ in range(matrix.columns)], dtype=float)
    weights = np.array([random.randint(-9, 9) for _ in range(matrix.rows)], dtype=float)
    assert np.array_equal(matrix @ vector, dense @ vector)
    assert np.array_equal(matrix.sums_of_columns(weights), weights @ dense)
    assert np.array_equal(matrix.absolute() @ vector, np.abs(dense) @ vector)
    assert np.array_equal(matrix.negated() @ vector, -dense @ vector)


@given(entries())
def test_each_place_is_there_once_row_after_row(pair):
    matrix, dense = pair
    places = list(zip(matrix.row.tolist(), matrix.column.tolist(), strict=True))
    assert places == sorted(set(places))
    begins = matrix.bounds_of_rows()
    assert [matrix.row[a:b].tolist() for a, b in pairwise(begins)] == [
        [row] * np.count_nonzero(matrix.row == row) for row in range(matrix.rows)
    ]
    assert np.array_equal(of_dense(dense) @ np.eye(matrix.columns)[0], dense[:, 0])


@given(entries(), entries())
def test_stacked_rows_follow_each_other(one, other):
    whole = stacked([one[0], other[0]])
    wide = np.zeros((whole.rows, whole.columns))
    wide[: one[0].rows, : one[0].columns] = one[1]
    wide[one[0].rows :, : other[0].columns] = other[1]
    vector = np.arange(1.0, whole.columns + 1)
    assert np.array_equal(whole @ vector, wide @ vector)
