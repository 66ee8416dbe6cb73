"""The Gaussian process against the textbook's formulas with the whole covariance matrix."""

import numpy as np
import pytest
from numpy.typing import NDArray

from chorale.tuner.search.size_model import AcquisitionOptimizer, SizeModel, axes_of
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
def test_beliefs_are_those_of_the_textbook(fitted: bool) -> None:
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
    each = own.posterior(SEEN, observed, UNSEEN, np.eye(len(SIZES)))
    assert each.mean.ravel() == pytest.approx(mean)
    assert each.deviation.ravel() ** 2 == pytest.approx(np.diag(spread))
    weights = np.array([[0.1, 0.2, 0.3, 0.4]])
    mixed = own.posterior(SEEN, observed, UNSEEN, weights)
    across_sizes = np.kron(np.eye(len(UNSEEN)), weights)
    assert mixed.mean.ravel() == pytest.approx(across_sizes @ mean)
    assert mixed.deviation.ravel() ** 2 == pytest.approx(np.diag(across_sizes @ spread @ across_sizes.T))


def test_the_gradient_of_the_misfit_is_that_of_finite_differences() -> None:
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


def test_every_size_gets_its_best_point_soon() -> None:
    for seed in range(5):
        first = tried(AcquisitionOptimizer(CHOICES, CHOSEN_AT, False, seed), 7)
        best = np.max([gain(point) for point in first], axis=0)
        assert np.max(np.max([gain(point) for point in CHOICES], axis=0) - best) < 0.15


def test_one_point_for_all_sizes_is_found_by_its_mean() -> None:
    for seed in range(5):
        first = tried(AcquisitionOptimizer(CHOICES, CHOSEN_AT, True, seed), 6)
        best = max(gain(point).mean() for point in first)
        assert best == max(gain(point).mean() for point in CHOICES)


def test_points_under_way_are_not_chosen_and_failures_keep_the_search_away() -> None:
    gains = {point: gain(point) for point in CHOICES[:2]}
    busy, failed = CHOICES[2:8], CHOICES[8:11]
    assert AcquisitionOptimizer(CHOICES, CHOSEN_AT, False, 0).next(gains, failed, busy) == CHOICES[11]


def test_a_size_that_counts_more_gets_its_best_point_first() -> None:
    heavy = CHOSEN_AT.index(2**18)
    weights = [1e-6 if index != heavy else 1.0 for index in range(len(CHOSEN_AT))]
    for seed in range(5):
        first = tried(AcquisitionOptimizer(CHOICES, CHOSEN_AT, False, seed, weights), 5)
        assert max(gain(point)[heavy] for point in first) == max(gain(point)[heavy] for point in CHOICES)


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
