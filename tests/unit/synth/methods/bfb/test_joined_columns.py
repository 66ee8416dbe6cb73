"""Parts in any order make the columns that joining them at the end makes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.methods.bfb.joined_columns import JoinedColumns

TYPES = (np.dtype(np.uint8), np.dtype(np.uint16))


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.randoms(use_true_random=False), st.integers(0, 20))
def test_any_order(lengths, random, rows):
    parts = [
        tuple((np.arange(length) + 7 * number).astype(dtype) for dtype in TYPES)
        for number, length in enumerate(lengths)
    ]
    columns = JoinedColumns(TYPES, rows)
    for number in random.sample(range(len(parts)), len(parts)):
        columns.add(number, parts[number])
    for index, (column, dtype) in enumerate(zip(columns.joined(), TYPES, strict=True)):
        assert column.dtype == dtype
        assert np.array_equal(column, np.concatenate([part[index] for part in parts]))


def test_a_missing_part_is_noticed():
    columns = JoinedColumns(TYPES, 1)
    columns.add(1, tuple(np.zeros(1, dtype) for dtype in TYPES))
    with pytest.raises(ValueError, match="part 0 is missing"):
        columns.joined()
