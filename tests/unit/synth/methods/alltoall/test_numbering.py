"""Numbers for colours, against a dictionary."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.methods.alltoall.linear_program import ColourTable, count_colours


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 5), max_size=60), st.integers(0, 60))
def test_numbers_follow_the_order_of_first_sight(values, cut):
    table = ColourTable(4)
    colours = np.array(values, dtype=np.uint64)
    numbers = np.concatenate([table.number(colours[:cut]), table.number(colours[cut:])])
    known: dict[int, int] = {}
    assert numbers.tolist() == [known.setdefault(value, len(known)) for value in values]
    assert table.count == len(known) == count_colours(colours)


def test_the_table_grows():
    colours = np.arange(10_000, dtype=np.uint64) * np.uint64(2**32)
    table = ColourTable(1)
    assert np.array_equal(table.number(colours), np.arange(10_000))
    assert np.array_equal(table.number(colours[::-1].reshape(100, 100)), np.arange(10_000)[::-1].reshape(100, 100))
    assert table.count == 10_000
