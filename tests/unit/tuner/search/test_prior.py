"""A prior leads where it predicts, and is dropped where it does not."""

from __future__ import annotations

import numpy as np

from chorale.tuner.search.prior import Prior
from chorale.tuner.trials.records import Candidate

POINTS = [Candidate("a", k=k) for k in range(1, 13)]
TRUTH = {point: np.array([0.1 * index, 1.0 - 0.1 * index]) for index, point in enumerate(POINTS)}


def test_a_right_prior_is_believed_and_a_wrong_one_is_not() -> None:
    measured = {point: TRUTH[point] for point in POINTS[::3]}
    right, wrong = Prior(TRUTH), Prior({point: -gains for point, gains in TRUTH.items()})
    assert right.weight(measured) > 0.7
    assert wrong.weight(measured) == 0.0


def test_nothing_is_believed_before_there_are_trials_to_compare_with() -> None:
    assert Prior(TRUTH).weight({POINTS[0]: TRUTH[POINTS[0]]}) == 0.0


def test_the_first_starts_are_best_together() -> None:
    gains = {POINTS[0]: np.array([1.0, 0.0]), POINTS[1]: np.array([0.0, 0.9]), POINTS[2]: np.array([0.9, 0.0])}
    assert Prior(gains).starts() == [POINTS[0], POINTS[1]]


def test_points_that_it_does_not_know_are_expected_to_be_average() -> None:
    expected = Prior({POINTS[0]: np.array([1.0]), POINTS[1]: np.array([3.0])}).expected(POINTS[:3])
    assert expected.tolist() == [[1.0], [3.0], [2.0]]
