"""The Gaussian process against the textbook's formulas with the whole covariance matrix."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from chorale.tuner.search.size_model import SizeModel, axes_of
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


def test_points_that_were_seen_are_believed_to_be_as_they_were() -> None:
    own = model()
    observed = values(4)
    belief = own.posterior(SEEN, observed, SEEN, np.eye(len(SIZES)))
    assert np.max(np.abs(belief.mean - observed)) < 0.05
    assert np.max(belief.deviation) < 0.03
