"""Distances between switches and triangles of arcs, against SciPy's graphs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from chorale.synth.methods.forest.split.switch_groups import FAR, spreading_lengths


@st.composite
def wirings(draw):
    """Any digraph of a few switches, arcs sorted by their tails."""
    size = draw(st.integers(2, 8))
    arcs = sorted(draw(st.sets(st.tuples(*[st.integers(0, size - 1)] * 2).filter(lambda arc: arc[0] != arc[1]))))
    src, dst = np.array(arcs, dtype=np.int32).reshape(-1, 2).T.copy()
    return size, src, dst


def matrix_of(wiring, values):
    size, src, dst = wiring
    return csr_array((values, (src, dst)), shape=(size, size))


@given(wirings())
def test_distances_are_those_of_the_lengths_that_are_returned(wiring):
    lengths, distances = spreading_lengths(*wiring)
    assert lengths.min(initial=1) >= 1
    expected = shortest_path(matrix_of(wiring, lengths.astype(float)))
    assert np.array_equal(distances, np.minimum(expected, FAR).astype(np.uint16))


@given(wirings())
def test_an_arc_is_short_where_two_others_lead_the_same_way(wiring):
    _, src, dst = wiring
    arcs = list(zip(src.tolist(), dst.tolist(), strict=True))
    others = {(one, other) for one, middle in arcs for start, other in arcs if start == middle}
    lengths, _ = spreading_lengths(*wiring)
    assert [length == 1 for length in lengths] == [arc in others for arc in arcs]
