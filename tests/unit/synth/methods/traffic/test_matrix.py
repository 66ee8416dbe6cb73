"""Traffic matrices and their chunks."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.synth.errors import InvalidInput
from chorale.synth.methods.traffic.matrix import (
    MAX_TOTAL_CHUNKS,
    chunk_counts,
    traffic_matrix,
    zipf_matrix,
)


@given(st.lists(st.lists(st.integers(0, 2**40), min_size=3, max_size=3), min_size=3, max_size=3), st.integers(1, 40))
def test_chunks_hold_the_amounts_and_less_than_one_chunk_more(rows, largest):
    if not np.where(np.eye(3, dtype=bool), 0, rows).any():
        return
    matrix = traffic_matrix("random", rows)
    for asked in (None, largest):
        chunks = chunk_counts(matrix, asked)
        assert int(chunks.counts.sum()) <= MAX_TOTAL_CHUNKS
        for count, amount in zip(chunks.counts.ravel().tolist(), matrix.amounts.ravel().tolist(), strict=True):
            assert amount <= count * chunks.chunk < amount + chunks.chunk
    assert int(chunk_counts(matrix, largest).counts.max()) == largest


def test_amounts_with_a_common_divisor_are_not_padded():
    chunks = chunk_counts(traffic_matrix("m", [[0, 6000], [9000, 3000]]))
    assert (chunks.chunk, chunks.counts.tolist()) == (Fraction(3000), [[0, 2], [3, 1]])


def test_skews_are_the_same_for_the_same_seed_and_even_at_exponent_zero():
    first, again, other = (zipf_matrix(16, 1.2, seed).amounts for seed in (3, 3, 4))
    assert (first == again).all()
    assert not (first == other).all()
    assert sorted(first[0].tolist(), reverse=True)[:3] == [1024, 446, 274]
    assert len(np.unique(zipf_matrix(8, 0, 0).amounts)) == 1
    assert zipf_matrix(64, 8, 0).amounts.min() == 1


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([[0, 1, 2], [3, 0, 4]], "a row and a column for each of at least 2 ranks"),
        ([[0, 1], [2]], "a row and a column for each of at least 2 ranks"),
        ([[0]], "a row and a column for each of at least 2 ranks"),
        ([[0, 0.5], [1, 0]], "must be whole numbers"),
        ([[0, -1], [1, 0]], "must be 0 to 2\\^40"),
        ([[0, 2**40 + 1], [1, 0]], "must be 0 to 2\\^40"),
        ([[5, 0], [0, 5]], "the traffic matrix sends nothing"),
    ],
)
def test_what_is_no_traffic_is_refused(rows, rule):
    with pytest.raises(InvalidInput, match=rule):
        traffic_matrix("bad", rows)


@pytest.mark.parametrize(("exponent", "ranks"), [(-1, 4), (9, 4), (1, 1), (1, 1025)])
def test_skews_have_limits(exponent, ranks):
    with pytest.raises(InvalidInput):
        zipf_matrix(ranks, exponent, 0)


def test_the_way_back_is_the_transpose():
    matrix = traffic_matrix("m", [[1, 2], [3, 4]])
    assert matrix.transposed().amounts.tolist() == [[1, 3], [2, 4]]
    assert (matrix.mean, matrix.sent.tolist()) == (Fraction(5, 2), [[0, 2], [3, 0]])
