"""Maximum matchings against SciPy's and against a bound by vertex covers on random graphs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from chorale.synth.methods.rings.matching import maximum_matching


@st.composite
def graphs(draw):
    right_count = draw(st.integers(1, 9))
    rows = st.sets(st.integers(0, right_count - 1), max_size=right_count).map(sorted)
    return draw(st.lists(rows, min_size=1, max_size=9)), right_count


@given(graphs())
def test_as_many_are_matched_as_scipy_matches_each_to_one_of_its_choices(graph):
    choices, right_count = graph
    matched = maximum_matching(choices, right_count)
    taken = [right for right in matched if right is not None]
    assert len(set(taken)) == len(taken)
    assert all(right is None or right in choices[left] for left, right in enumerate(matched))
    ends = [(left, right) for left, following in enumerate(choices) for right in following]
    rows, columns = ([], []) if not ends else zip(*ends, strict=True)
    matrix = csr_array((np.ones(len(ends)), (rows, columns)), shape=(len(choices), right_count))
    assert len(taken) == np.count_nonzero(maximum_bipartite_matching(matrix, perm_type="column") >= 0)


@pytest.mark.parametrize("count", [1, 50, 3000])
def test_a_chain_is_matched_along_its_whole_length(count):
    """Only one way to match everybody: each has to give way once the last one comes."""
    choices = [[left, left + 1] if left + 1 < count else [left] for left in reversed(range(count))]
    choices = [sorted(following, reverse=True) for following in choices]
    assert [right is not None for right in maximum_matching(choices, count)] == [True] * count
