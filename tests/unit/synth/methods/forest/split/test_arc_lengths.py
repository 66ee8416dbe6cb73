"""Distances between switches and triangles of arcs, against SciPy's graphs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from chorale.synth.methods.forest.split import arc_lengths
from chorale.synth.methods.forest.split.arc_lengths import FAR, Wiring, spreading_lengths


@st.composite
def wirings(draw):
    """Any digraph of a few switches, arcs sorted by their tails."""
    size = draw(st.integers(2, 8))
    arcs = sorted(draw(st.sets(st.tuples(*[st.integers(0, size - 1)] * 2).filter(lambda arc: arc[0] != arc[1]))))
    src, dst = np.array(arcs, dtype=np.int32).reshape(-1, 2).T.copy()
    capacity = np.array(draw(st.lists(st.integers(1, 9), min_size=len(arcs), max_size=len(arcs))), dtype=np.int64)
    ends = [np.array(draw(st.lists(st.integers(0, 9), min_size=size, max_size=size)), dtype=np.int64) for _ in range(2)]
    return Wiring(size, src, dst, capacity, *ends)


def matrix_of(wiring, values):
    return csr_array((values, (wiring.src, wiring.dst)), shape=(wiring.size, wiring.size))


@given(wirings())
def test_distances_are_those_of_the_lengths_that_are_returned(wiring):
    lengths, distances = spreading_lengths(wiring)
    assert lengths.min(initial=1) >= 1
    expected = shortest_path(matrix_of(wiring, lengths.astype(float)))
    assert np.array_equal(distances, np.minimum(expected, FAR).astype(np.uint16))


@given(wirings())
def test_an_arc_is_short_where_two_others_lead_the_same_way(wiring):
    ones = matrix_of(wiring, np.ones(len(wiring.src)))
    beside = np.asarray((ones @ ones).todense())[wiring.src, wiring.dst] > 0
    assert np.array_equal(arc_lengths._triangle_lengths(wiring) == 1.0, beside)
