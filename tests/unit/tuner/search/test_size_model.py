"""The Gaussian process against the textbook's formulas, and priors that lead where they predict."""

import numpy as np
import pytest
from numpy.typing import NDArray

from chorale.tuner.search.size_model import AcquisitionOptimizer, Floats, Prior, PriorMix, SizeModel, axes_of
from chorale.tuner.trials.records import Candidate

POINTS = [Candidate(method, k=k, channels=c) for method in ("a", "b") for k in (None, 1, 2) for c in (1, 2, 4)]
SIZES = [2**10, 2**13, 2**14, 2**20]
SEEN, UNSEEN = np.array([0, 3, 5, 8, 11, 16]), np.array([1, 2, 17])


def model() -> SizeModel:
    return SizeModel(axes_of(POINTS), SIZES)


def values(seed: int, count: int = len(SEEN)) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(0, 0.3, (count, len(SIZES)))


def covariance(
    some: NDArray[np.intp], others: NDArray[np.intp], parameters: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the covariance of (point, size) pairs, entry by entry."""

    def matern(distance: float) -> float:
        return (1 + np.sqrt(3) * distance) * np.exp(-np.sqrt(3) * distance)

    axes = axes_of(POINTS)
    rows = []
    for i in some:
        for size in SIZES:
            row = []
            for j in others:
                near = 1.0
                for axis, scale in zip(axes, np.exp(parameters), strict=False):
                    near *= np.exp(-scale * axis.distances(np.array([i]), np.array([j]))[0, 0])
                for other in SIZES:
                    octaves = abs(np.log2(size / other)) / np.exp(parameters[-3])
                    row.append(np.exp(2 * parameters[-2]) * near * matern(octaves))
            rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("fitted", [False, True])
def test_beliefs_are_those_of_the_textbook(fitted):
    own = model()
    observed = values(1)
    if fitted:
        own.fit(SEEN, observed)
    parameters = own._parameters
    noise = np.exp(2 * parameters[-1]) * np.eye(observed.size)
    solve = np.linalg.solve
    within, across = covariance(SEEN, SEEN, parameters) + noise, covariance(UNSEEN, SEEN, parameters)
    mean = across @ solve(within, observed.ravel())
    spread = covariance(UNSEEN, UNSEEN, parameters) - across @ solve(within, across.T)
    mean_of_each, deviation = own.posterior(SEEN, observed, UNSEEN, np.eye(len(SIZES)))
    assert mean_of_each.ravel() == pytest.approx(mean)
    assert deviation.ravel() ** 2 == pytest.approx(np.diag(spread))
    weights = np.array([[0.1, 0.2, 0.3, 0.4]])
    mixed, deviation = own.posterior(SEEN, observed, UNSEEN, weights)
    across_sizes = np.kron(np.eye(len(UNSEEN)), weights)
    assert mixed.ravel() == pytest.approx(across_sizes @ mean)
    assert deviation.ravel() ** 2 == pytest.approx(np.diag(across_sizes @ spread @ across_sizes.T))


def test_the_gradient_of_the_misfit_is_that_of_finite_differences():
    own = model()
    distances = [axis.distances(SEEN, SEEN) for axis in axes_of(POINTS)]
    parameters = own._parameters + values(2, 2).ravel()[: len(own._parameters)]
    gradient = own._misfit(parameters, distances, values(3))[1]
    for index, expected in enumerate(gradient):
        step = np.eye(len(parameters))[index] * 1e-5
        ends = [own._misfit(parameters + sign * step, distances, values(3))[0] for sign in (1, -1)]
        assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(expected, rel=1e-4, abs=1e-6)


CHOSEN_AT = [2**10, 2**14, 2**18]
CHOICES = [Candidate(method, chunks=chunks) for method in ("a", "b") for chunks in (1, 2, 4, 8, 16, 32)]


def gain(point: Candidate) -> NDArray[np.float64]:
    """Method a loses everywhere; of b few chunks are good at small sizes and many at large ones."""
    chunks = np.log2(point.chunks or 1)
    return np.array([0.5 - abs(chunks - best) / 4 for best in (0, 2.5, 5)]) - (1.0 if point.method == "a" else 0.0)


def tried(choice: AcquisitionOptimizer, count: int) -> list[Candidate]:
    gains = {CHOICES[0]: gain(CHOICES[0]), CHOICES[6]: gain(CHOICES[6])}
    while len(gains) < count:
        point = choice.next(gains, [], [])
        assert point not in gains
        gains[point] = gain(point)
    return list(gains)


def test_the_best_points_of_each_size_or_of_all_are_found_soon_and_none_twice():
    every = np.array([gain(point) for point in CHOICES])
    weights = [1e-6, 1e-6, 1.0]
    for seed in range(5):
        first = [gain(point) for point in tried(AcquisitionOptimizer(CHOICES, CHOSEN_AT, False, seed), 7)]
        assert np.max(every.max(axis=0) - np.max(first, axis=0)) < 0.15
        first = [gain(point).mean() for point in tried(AcquisitionOptimizer(CHOICES, CHOSEN_AT, True, seed), 6)]
        assert max(first) == max(gain(point).mean() for point in CHOICES)
        first = [gain(point)[2] for point in tried(AcquisitionOptimizer(CHOICES, CHOSEN_AT, False, seed, weights), 5)]
        assert max(first) == every[:, 2].max()
    gains = {point: gain(point) for point in CHOICES[:2]}
    busy, failed = CHOICES[2:8], CHOICES[8:11]
    assert AcquisitionOptimizer(CHOICES, CHOSEN_AT, False, 0).next(gains, failed, busy) == CHOICES[11]


ALL = np.arange(4)


def test_distances_along_axes():
    [axis] = axes_of([Candidate(name) for name in ("a", "b", "a", "c")])
    assert axis.is_named
    assert axis.distances(ALL[:2], ALL).tolist() == [[0, 1, 0, 1], [1, 0, 1, 1]]
    [axis] = axes_of([Candidate("a", chunks=chunks) for chunks in (1, 4, 16, None)])
    assert axis.distances(ALL, ALL).tolist() == [[0, 0.5, 1, 1], [0.5, 0, 0.5, 1], [1, 0.5, 0, 1], [1, 1, 1, 0]]
    assert axes_of([Candidate("a"), Candidate("a")]) == []
    assert len(axes_of([Candidate("a"), Candidate("b", k=3)])) == 2
    for named in ({"pipeline_bytes": (0, 65536, 262144)}, {"reads": (False, True, True)}):
        [(name, each)] = named.items()
        [axis] = axes_of([Candidate("a", **{name: value}) for value in each])
        first, others = np.arange(1), np.arange(1, 3)
        assert axis.distances(first, others).tolist() == [[1.0, 1.0]]
        assert axis.distances(first, first).tolist() == [[0.0]]


Gains = dict[Candidate, Floats]

KNOWN = [Candidate("a", k=k) for k in range(1, 13)]
TRUTH: Gains = {point: np.array([0.1 * index, 0.15 * index]) for index, point in enumerate(KNOWN)}
MEASURED: Gains = {point: TRUTH[point] + 3.0 for point in KNOWN[::3]}


def changed(factor: float, shift: float = 0.0) -> Gains:
    return {point: factor * gains + shift for point, gains in TRUTH.items()}


def noise(seed: int) -> Gains:
    random = np.random.default_rng(seed)
    return {point: random.normal(0, 0.5, 2) for point in KNOWN}


def test_a_right_prior_is_believed_at_any_scale_and_level_and_a_wrong_one_is_dropped():
    for factor, shift in ((1, 0), (1, 5), (10, 0), (100, -7)):
        mix = PriorMix([Prior(changed(factor, shift))], KNOWN)
        [weight] = mix.weights(MEASURED)
        assert 0.6 < weight <= 1
        differences = np.diff(mix.belief(MEASURED), axis=0)
        assert np.all(differences > 0.5 * np.diff(list(TRUTH.values()), axis=0))
    for factor, shift in ((-1, 0), (-10, 0), (0, 2)):
        mix = PriorMix([Prior(changed(factor, shift))], KNOWN)
        assert mix.weights(MEASURED).tolist() == [0.0]
        assert not mix.belief(MEASURED).any()


def test_noise_is_mostly_dropped_and_of_two_the_right_one_is_believed():
    believed = [PriorMix([Prior(noise(seed))], KNOWN).weights(TRUTH).any() for seed in range(100)]
    assert np.mean(believed) < 0.15
    liars: list[Gains] = [changed(-1), *(noise(seed) for seed in range(20))]
    for liar in liars:
        right, wrong = PriorMix([Prior(TRUTH), Prior(liar)], KNOWN).weights(TRUTH)
        assert right > 0.6
        assert wrong < 0.2
    both = PriorMix([Prior(TRUTH), Prior(TRUTH)], KNOWN).weights(TRUTH).sum()
    assert 0.8 < both <= 1.01


def test_what_cannot_be_compared_is_left_out_and_starts_lead():
    mix = PriorMix([Prior(TRUTH)], KNOWN)
    assert mix.weights({}).tolist() == mix.weights({KNOWN[0]: TRUTH[KNOWN[0]]}).tolist() == [0.0]
    mix = PriorMix([Prior({Candidate("b"): np.array([1.0])})], KNOWN)
    assert not mix
    assert mix.starts() == []
    measured = MEASURED | {KNOWN[1]: np.array([np.nan, 1.0]), KNOWN[2]: np.array([np.inf, 1.0])}
    mix = PriorMix([Prior(TRUTH)], KNOWN)
    assert mix.weights(measured).tolist() == mix.weights(MEASURED).tolist()
    gains = {KNOWN[0]: np.array([1.0, 0.0]), KNOWN[1]: np.array([0.0, 0.9]), KNOWN[2]: np.array([0.9, 0.0])}
    assert PriorMix([Prior(gains)], KNOWN).starts() == [KNOWN[0], KNOWN[1]]
    mix = PriorMix([Prior({KNOWN[0]: np.array([1.0]), KNOWN[1]: np.array([1.4])})], KNOWN[:3])
    belief = mix.belief({KNOWN[0]: np.array([2.0]), KNOWN[1]: np.array([2.4])})
    assert belief[2] == pytest.approx(belief[:2].mean())
    assert mix.starts() == [KNOWN[1], KNOWN[0]]
