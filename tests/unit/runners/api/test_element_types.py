"""Data of every element type stay exact on as many ranks as the type takes, and tell ranks apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.elements import ELEMENT_TYPES, UNTOUCHED, DataPattern


@pytest.mark.parametrize("name", ELEMENT_TYPES)
def test_integers_up_to_the_limit_are_exact_and_the_limit_is_what_it_can_be(name: str) -> None:
    element = ELEMENT_TYPES[name]
    integers = np.arange(element.exact_limit - 300, element.exact_limit + 1).clip(min=UNTOUCHED)
    assert np.array_equal(integers.astype(element.dtype).astype(np.int64), integers)
    if name in ("float32", "float16", "bfloat16"):
        assert int(np.array(element.exact_limit + 1).astype(element.dtype)) == element.exact_limit


@given(st.sampled_from(["bfloat16", "float16"]), st.data(), st.integers(0, 10**6), st.integers(0, 2**33))
def test_sums_of_short_types_are_exact_in_any_order(name: str, data: st.DataObject, run: int, start: int) -> None:
    element = ELEMENT_TYPES[name]
    ranks, seed = data.draw(st.integers(1, element.max_ranks)), data.draw(st.integers(0, 2**63))
    pattern = DataPattern(ranks, run, seed, element.exact_limit)
    total = pattern.total(start, start + 200)
    vectors = [pattern.contribution(rank, start, start + 200) for rank in range(ranks)]
    assert total.max() <= element.exact_limit
    added = np.zeros(200, element.dtype)
    for datum in vectors:
        added = added + datum.astype(element.dtype)
    assert np.array_equal(added.astype(np.int64), total)
    assert all(np.all(vectors[0] != other) for other in vectors[1:])


def test_seventeen_ranks_would_be_too_many_for_what_is_promised() -> None:
    element = ELEMENT_TYPES["bfloat16"]
    most = max(DataPattern(18, run, 0, element.exact_limit).total(0, 5000).max() for run in range(5))
    assert most > element.exact_limit
