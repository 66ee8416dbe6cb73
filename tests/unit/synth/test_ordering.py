"""Rows are sorted by counting as NumPy sorts them by comparing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.ordering import sorted_order

SIZES = st.sampled_from([1, 3, 2**12, 2**31 - 1])


@given(st.integers(0, 60), st.lists(SIZES, min_size=1, max_size=4), st.integers(0, 2**32))
def test_the_order_is_that_of_lexsort(rows, sizes, seed):
    rng = np.random.default_rng(seed)
    columns = [rng.integers(-3, size, size=rows).astype(np.int32) for size in sizes]
    assert (sorted_order(columns) == np.lexsort(columns[::-1])).all()


@pytest.mark.parametrize("largest", [0, 1, 2**17, 2**40])
def test_many_rows_take_longer_digits(largest):
    column = np.random.default_rng(1).integers(0, largest + 1, size=70_000)
    assert (sorted_order([column]) == np.argsort(column, kind="stable")).all()
