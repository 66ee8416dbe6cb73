"""A prior leads where it predicts, and is dropped where it does not."""

import numpy as np
import pytest

from chorale.tuner.search.size_model import Floats, Prior, PriorMix
from chorale.tuner.trials.records import Candidate

Gains = dict[Candidate, Floats]

POINTS = [Candidate("a", k=k) for k in range(1, 13)]
TRUTH: Gains = {point: np.array([0.1 * index, 0.15 * index]) for index, point in enumerate(POINTS)}
MEASURED: Gains = {point: TRUTH[point] + 3.0 for point in POINTS[::3]}


def changed(factor: float, shift: float = 0.0) -> Gains:
    return {point: factor * gains + shift for point, gains in TRUTH.items()}


def noise(seed: int) -> Gains:
    random = np.random.default_rng(seed)
    return {point: random.normal(0, 0.5, 2) for point in POINTS}


@pytest.mark.parametrize(("factor", "shift"), [(1, 0), (1, 5), (10, 0), (100, -7)])
def test_a_right_prior_is_believed_at_any_scale_and_level(factor: float, shift: float) -> None:
    mix = PriorMix([Prior(changed(factor, shift))], POINTS)
    [weight] = mix.weights(MEASURED)
    assert 0.6 < weight <= 1
    differences = np.diff(mix.belief(MEASURED), axis=0)
    assert np.all(differences > 0.5 * np.diff(list(TRUTH.values()), axis=0))


@pytest.mark.parametrize(("factor", "shift"), [(-1, 0), (-10, 0), (0, 2)])
def test_a_wrong_prior_is_dropped(factor: float, shift: float) -> None:
    mix = PriorMix([Prior(changed(factor, shift))], POINTS)
    assert mix.weights(MEASURED).tolist() == [0.0]
    assert not mix.belief(MEASURED).any()


def test_noise_is_mostly_dropped() -> None:
    believed = [PriorMix([Prior(noise(seed))], POINTS).weights(TRUTH).any() for seed in range(100)]
    assert np.mean(believed) < 0.15


def test_of_two_priors_the_right_one_is_believed() -> None:
    liars: list[Gains] = [changed(-1), *(noise(seed) for seed in range(20))]
    for liar in liars:
        right, wrong = PriorMix([Prior(TRUTH), Prior(liar)], POINTS).weights(TRUTH)
        assert right > 0.6
        assert wrong < 0.2


def test_two_that_say_the_same_are_not_counted_twice() -> None:
    both = PriorMix([Prior(TRUTH), Prior(TRUTH)], POINTS).weights(TRUTH).sum()
    assert 0.8 < both <= 1.01


def test_nothing_is_believed_before_there_are_trials_to_compare_with() -> None:
    mix = PriorMix([Prior(TRUTH)], POINTS)
    assert mix.weights({}).tolist() == mix.weights({POINTS[0]: TRUTH[POINTS[0]]}).tolist() == [0.0]


def test_the_starts_are_best_together() -> None:
    gains = {POINTS[0]: np.array([1.0, 0.0]), POINTS[1]: np.array([0.0, 0.9]), POINTS[2]: np.array([0.9, 0.0])}
    assert PriorMix([Prior(gains)], POINTS).starts() == [POINTS[0], POINTS[1]]


def test_points_that_it_does_not_know_are_expected_to_be_average() -> None:
    mix = PriorMix([Prior({POINTS[0]: np.array([1.0]), POINTS[1]: np.array([1.4])})], POINTS[:3])
    belief = mix.belief({POINTS[0]: np.array([2.0]), POINTS[1]: np.array([2.4])})
    assert belief[2] == pytest.approx(belief[:2].mean())
    assert mix.starts() == [POINTS[1], POINTS[0]]


def test_priors_without_a_point_of_the_space_are_left_out() -> None:
    mix = PriorMix([Prior({Candidate("b"): np.array([1.0])})], POINTS)
    assert not mix
    assert mix.starts() == []


def test_values_that_are_no_numbers_are_left_out() -> None:
    measured = MEASURED | {POINTS[1]: np.array([np.nan, 1.0]), POINTS[2]: np.array([np.inf, 1.0])}
    mix = PriorMix([Prior(TRUTH)], POINTS)
    assert mix.weights(measured).tolist() == mix.weights(MEASURED).tolist()
