"""Which point to try next, from what the others did at every size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from chorale.tuner.campaigns.axes import axes_of
from chorale.tuner.campaigns.records import Candidate
from chorale.tuner.campaigns.size_model import Floats, Posterior, SizeModel

GROWTH = 1.25
"""The covariance is fitted again when there are that many times as many observations."""

MAX_UNTRIED = 4000
"""Points that are weighed for one choice; of more, a sample."""

_LINEAR_ALGEBRA = ThreadpoolController()
"""Threads of the linear algebra below numpy and scipy. On matrices of a few hundred rows they wait for one another: on
a busy machine a choice took fifty times as long with two of them as with one."""


class AcquisitionOptimizer:
    """Chooses the point from which most is to be expected.

    points:   all points of the space
    together: whether one point must serve all sizes; else the answer has a point of its own for each size
    """

    def __init__(self, points: Sequence[Candidate], sizes_bytes: Sequence[int], together: bool, seed: int) -> None:
        self._points = points
        self._number = {point: number for number, point in enumerate(points)}
        self._model = SizeModel(axes_of(points), sizes_bytes)
        sizes = len(sizes_bytes)
        self._outputs = np.full((1, sizes), 1 / sizes) if together else np.eye(sizes)
        self._random = np.random.default_rng(seed)
        self._fitted = 0

    def next(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate:
        """Return a point that is none of these; there must be one.

        gains:  logarithm of the speed-up over the baseline at each size, of points that were measured: at least one
        failed: points that gave no measurement; they count as slow as the slowest
        busy:   points under way; until more is known they are taken to be like the others (constant liar: Ginsbourger,
                Le Riche and Carraro, Kriging is well-suited to parallelize optimization, 2010, section 3.2)
        """
        with _LINEAR_ALGEBRA.limit(limits=1, user_api="blas"):
            return self._next(gains, failed, busy)

    def _next(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate:
        measured = np.array(list(gains.values()))
        middle = measured.mean(axis=0)
        lies = [measured.min(axis=0)] * len(failed) + [middle] * len(busy)
        values = np.array([*measured, *lies]) - middle
        tried = np.array([self._number[point] for point in (*gains, *failed, *busy)])
        if len(tried) >= GROWTH * self._fitted:
            self._model.fit(tried, values)
            self._fitted = len(tried)
        others = self._untried(tried)
        belief = self._model.posterior(tried, values, others, self._outputs)
        reached = np.maximum(measured @ self._outputs.T, 0.0).max(axis=0)
        expected = _expected_improvement(belief, reached - self._outputs @ middle).sum(axis=1)
        return self._points[int(others[np.argmax(expected)])]

    def _untried(self, tried: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the points left, in random order, so that equals are taken by chance."""
        others = self._random.permutation(np.setdiff1d(np.arange(len(self._points)), tried))
        return others[:MAX_UNTRIED]


def _expected_improvement(belief: Posterior, reached: Floats) -> Floats:
    """Return by how much each output is expected to exceed what was reached (Jones et al., 1998, eq. 15)."""
    standard = (belief.mean - reached) / belief.deviation
    density = np.exp(-(standard**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(belief.deviation * (standard * ndtr(standard) + density))
