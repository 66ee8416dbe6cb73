"""The next point to try, by expected improvement under a Gaussian process over parameters and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from chorale.synth.lazy_modules import optimize, special
from chorale.tuner.search.prior import PriorMix
from chorale.tuner.search.size_model import Floats, Posterior, SizeModel, axes_of
from chorale.tuner.trials.records import Candidate

GROWTH = 1.25
"""The covariance is fitted again when there are that many times as many observations."""

MOST_GAIN = 12.0
"""Logarithm of a speed-up that no measurement exceeds; what does is taken for that."""

MAX_UNTRIED = 4000
"""Points that are compared for one choice; of more, a random sample."""


@cache
def _linear_algebra() -> ThreadpoolController:
    """Return the threads of the linear algebra below numpy and scipy, both of which are loaded for it.

    On matrices of a few hundred rows threads wait for each other: on a busy machine a choice took fifty times as long
    with two threads as with one.
    """
    _ = optimize.minimize, special.ndtr
    return ThreadpoolController()


class AcquisitionOptimizer:
    """Chooses the point with the highest expected improvement.

    points:   all points of the space
    together: whether one point must serve all sizes; else each size may have a best point of its own
    weights:  how much each size counts; none: all the same
    prior:    what is known from elsewhere; the model learns how far measurements differ from it

    After `next`, `expected_gain` is by how much the point is expected to raise the mean over sizes of the logarithm of
    the best speed-up; None where no model chose it.
    """

    def __init__(
        self,
        points: Sequence[Candidate],
        sizes_bytes: Sequence[int],
        together: bool,
        seed: int | Sequence[int],
        weights: Sequence[float] = (),
        prior: PriorMix | None = None,
    ) -> None:
        self._points = points
        self._prior = prior
        self._nothing = np.zeros((len(points), len(sizes_bytes)))
        self._number = {point: number for number, point in enumerate(points)}
        self._axes = axes_of(points)
        self._model = SizeModel(self._axes, sizes_bytes)
        sizes = len(sizes_bytes)
        counts = np.array(weights or [1.0] * sizes)
        self._outputs = (counts / counts.sum())[None, :] if together else np.eye(sizes)
        self._counts = np.ones(1) if together else counts
        self._random = np.random.default_rng(seed)
        self._fitted = 0
        self.notes: Counter[str] = Counter()
        self.expected_gain: float | None = None

    def next(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate:
        """Return a point that is none of these; there must be one. Never raises for any values.

        Where the model breaks down, so do its fitted parameters go; then a simpler one decides, then chance. `notes`
        counts these.

        gains:  logarithm of the speed-up over the baseline at each size, of points that were measured: at least one
        failed: points that gave no measurement; they count as slow as the slowest
        busy:   pending points; until their results they are taken to be average (constant liar: Ginsbourger,
                Le Riche and Carraro, Kriging is well-suited to parallelize optimization, 2010, section 3.2)
        """
        self.expected_gain = None
        usable = {point: np.clip(np.nan_to_num(values), -MOST_GAIN, MOST_GAIN) for point, values in gains.items()}
        with _linear_algebra().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
            for step in (self._by_model, self._by_expected_model, self._by_effects):
                point = step(usable, failed, busy)
                if point is not None:
                    return point
        self.notes["a point was drawn at random"] += 1
        tried = np.array([self._number[point] for point in (*gains, *failed, *busy)])
        return self._points[int(self._untried(tried)[0])]

    def _by_model(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate | None:
        try:
            return self._next(gains, failed, busy)
        except (np.linalg.LinAlgError, ValueError, ArithmeticError):
            return None

    def _by_expected_model(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate | None:
        """Choose by the model as it is before it is fitted, whose noise keeps its matrices regular."""
        self.notes["the model was taken back to its prior"] += 1
        self._model.reset()
        self._fitted = len(gains) + len(failed) + len(busy)
        return self._by_model(gains, failed, busy)

    def _by_effects(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate | None:
        """Choose by the means of points that share a value with it; values that were tried seldom come first."""
        self.notes["means of each parameter stood in for the model"] += 1
        tried = np.array([self._number[point] for point in gains])
        scores = np.array(list(gains.values())) @ self._outputs.T @ self._counts
        if not len(tried) or not np.all(np.isfinite(scores)):
            return None
        others = self._untried(np.array([self._number[point] for point in (*gains, *failed, *busy)]))
        expected = np.zeros(len(others))
        for axis in self._axes:
            near = axis.distances(others, tried) == 0
            counts = near.sum(axis=1)
            expected += (near @ (scores - scores.mean())) / (counts + 1) + scores.std() / np.sqrt(counts + 1)
        return self._points[int(others[np.argmax(expected)])]

    def _next(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate | None:
        raw = np.array(list(gains.values()))
        belief = self._nothing if self._prior is None else self._prior.belief(gains)
        measured = raw - belief[[self._number[point] for point in gains]]
        middle = measured.mean(axis=0)
        slowest = raw.min(axis=0)
        lies = [slowest - belief[self._number[point]] for point in failed] + [middle] * len(busy)
        values = np.array([*measured, *lies]) - middle
        tried = np.array([self._number[point] for point in (*gains, *failed, *busy)])
        if len(tried) >= GROWTH * self._fitted:
            self._model.fit(tried, values)
            self._fitted = len(tried)
        others = self._untried(tried)
        posterior = self._model.posterior(tried, values, others, self._outputs)
        posterior = replace(posterior, mean=posterior.mean + (belief[others] + middle) @ self._outputs.T)
        reached = np.maximum(raw @ self._outputs.T, 0.0).max(axis=0)
        expected = _expected_improvement(posterior, reached) @ self._counts
        if not np.all(np.isfinite(expected)):
            return None
        chosen = int(np.argmax(expected))
        self.expected_gain = float(expected[chosen] / self._counts.sum())
        return self._points[int(others[chosen])]

    def _untried(self, tried: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the untried points in random order, so that ties are broken at random."""
        others = self._random.permutation(np.setdiff1d(np.arange(len(self._points)), tried))
        return others[:MAX_UNTRIED]


def _expected_improvement(posterior: Posterior, reached: Floats) -> Floats:
    """Return by how much each output is expected to exceed what was reached (Jones et al., 1998, eq. 15)."""
    standard = (posterior.mean - reached) / posterior.deviation
    density = np.exp(-(standard**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(posterior.deviation * (standard * special.ndtr(standard) + density))
