"""How far points are apart along each parameter."""

from __future__ import annotations

import numpy as np

from chorale.tuner.search.size_model import axes_of
from chorale.tuner.trials.records import Candidate

ALL = np.arange(4)


def test_names_are_the_same_or_not() -> None:
    [axis] = axes_of([Candidate(name) for name in ("a", "b", "a", "c")])
    assert axis.is_named
    assert axis.distances(ALL[:2], ALL).tolist() == [[0, 1, 0, 1], [1, 0, 1, 1]]


def test_numbers_are_apart_by_their_logarithms_and_one_left_open_by_the_whole_range() -> None:
    [axis] = axes_of([Candidate("a", chunks=chunks) for chunks in (1, 4, 16, None)])
    assert axis.distances(ALL, ALL).tolist() == [[0, 0.5, 1, 1], [0.5, 0, 0.5, 1], [1, 0.5, 0, 1], [1, 1, 1, 0]]


def test_parameters_that_never_differ_are_no_axes() -> None:
    assert axes_of([Candidate("a"), Candidate("a")]) == []
    assert len(axes_of([Candidate("a"), Candidate("b", k=3)])) == 2


def test_zero_and_no_are_apart_from_all_other_values():
    for values in ({"pipeline_bytes": (0, 65536, 262144)}, {"reads": (False, True, True)}):
        [(name, each)] = values.items()
        [axis] = axes_of([Candidate("a", **{name: value}) for value in each])
        first, others = np.arange(1), np.arange(1, 3)
        assert axis.distances(first, others).tolist() == [[1.0, 1.0]]
        assert axis.distances(first, first).tolist() == [[0.0]]
