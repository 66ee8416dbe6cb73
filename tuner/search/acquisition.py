"""The next point to try, by expected improvement under a Gaussian process over parameters and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from chorale.synth.lazy_modules import optimize, special
from chorale.tuner.search.prior import PriorMix
from chorale.tuner.search.size_model import Axis, Floats, Posterior, SizeModel, axes_of

Point = TypeVar("Point", bound=Hashable)

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


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Parameters of a model's covariance, and how many observations they were fitted to; none: as expected."""

    parameters: Floats | None = None
    count: int = 0


class AcquisitionOptimizer(Generic[Point]):
    """Chooses the point with the highest expected improvement.

    points:   all points of the space, candidates of campaigns or anything else that has `axes`
    together: whether one point must serve all sizes; else each size may have a best point of its own
    weights:  how much each size counts; none: all the same
    prior:    what is known from elsewhere; the model learns how far measurements differ from it
    axes:     along which points are more or less far apart; none: those of the parameters of candidates
    fitted:   what the covariance begins with, of another optimizer along as many axes

    After `next`, `expected_gain` is by how much the point is expected to raise the mean over sizes of the logarithm of
    the best speed-up; None where no model chose it.
    """

    def __init__(
        self,
        points: Sequence[Point],
        sizes_bytes: Sequence[int],
        together: bool,
        seed: int | Sequence[int],
        weights: Sequence[float] = (),
        prior: PriorMix | None = None,
        *,
        axes: Sequence[Axis] | None = None,
        fitted: Fitted = Fitted(),
    ) -> None:
        self._points = points
        self._prior = prior
        self._nothing = np.zeros((len(points), len(sizes_bytes)))
        self._number = {point: number for number, point in enumerate(points)}
        self._axes = axes_of(points) if axes is None else axes
        self._model = SizeModel(self._axes, sizes_bytes, fitted.parameters)
        self._limits: Mapping[Point, float] = {}
        sizes = len(sizes_bytes)
        counts = np.array(weights or [1.0] * sizes)
        self._outputs = (counts / counts.sum())[None, :] if together else np.eye(sizes)
        self._counts = np.ones(1) if together else counts
        self._random = np.random.default_rng(seed)
        self._fitted = fitted.count
        self.notes: Counter[str] = Counter()
        self.expected_gain: float | None = None

    @property
    def fitted(self) -> Fitted:
        """What another optimizer along as many axes can begin with."""
        return Fitted(self._model.parameters, self._fitted)

    def next(
        self,
        gains: Mapping[Point, Floats],
        failed: Sequence[Point],
        busy: Sequence[Point],
        limits: Mapping[Point, float] | None = None,
    ) -> Point:
        """Return a point that is none of these; there must be one. Never raises for any values.

        Where the model breaks down, so do its fitted parameters go; then a simpler one decides, then chance. `notes`
        counts these.

        gains:  logarithm of the speed-up over the baseline at each size, of points that were measured: at least one
        failed: points that gave no measurement; they count as slow as the slowest
        busy:   pending points; until their results they are taken to be average (constant liar: Ginsbourger,
                Le Riche and Carraro, Kriging is well-suited to parallelize optimization, 2010, section 3.2)
        limits: by how much points exceed what they may, about -1 to 1; those above 0 improve nothing, and improvement
                counts by the chance that a point is below (Gardner et al., Bayesian optimization with inequality
                constraints, 2014, section 3.1)
        """
        self.expected_gain = None
        self._limits = limits or {}
        usable = {point: np.clip(np.nan_to_num(values), -MOST_GAIN, MOST_GAIN) for point, values in gains.items()}
        with _linear_algebra().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
            for step in (self._by_model, self._by_expected_model, self._by_effects):
                point = step(usable, failed, busy)
                if point is not None:
                    return point
        self.notes["a point was drawn at random"] += 1
        tried = np.array([self._number[point] for point in (*gains, *failed, *busy)])
        return self._points[int(self._untried(tried)[0])]

    def _by_model(self, gains: Mapping[Point, Floats], failed: Sequence[Point], busy: Sequence[Point]) -> Point | None:
        try:
            return self._next(gains, failed, busy)
        except (np.linalg.LinAlgError, ValueError, ArithmeticError):
            return None

    def _by_expected_model(
        self, gains: Mapping[Point, Floats], failed: Sequence[Point], busy: Sequence[Point]
    ) -> Point | None:
        """Choose by the model as it is before it is fitted, whose noise keeps its matrices regular."""
        self.notes["the model was taken back to its prior"] += 1
        self._model.reset()
        self._fitted = len(gains) + len(failed) + len(busy)
        return self._by_model(gains, failed, busy)

    def _by_effects(
        self, gains: Mapping[Point, Floats], failed: Sequence[Point], busy: Sequence[Point]
    ) -> Point | None:
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

    def _next(self, gains: Mapping[Point, Floats], failed: Sequence[Point], busy: Sequence[Point]) -> Point | None:
        raw = np.array(list(gains.values()))
        belief = self._belief(gains)
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
        expected = self._improvement(posterior, raw, gains)
        if self._limits:
            expected = expected * self._chances(others)
        if not np.all(np.isfinite(expected)):
            return None
        chosen = int(np.argmax(expected))
        self.expected_gain = float(expected[chosen] / self._counts.sum())
        return self._points[int(others[chosen])]

    def _improvement(self, posterior: Posterior, raw: Floats, gains: Mapping[Point, Floats]) -> Floats:
        """Return the expected improvement over what was reached within the limits; 1 where nothing was."""
        allowed = [self._limits.get(point, 0.0) <= 0 for point in gains]
        if not any(allowed):
            return np.ones(len(posterior.mean))
        reached = np.maximum(raw[allowed] @ self._outputs.T, 0.0).max(axis=0)
        return np.asarray(_expected_improvement(posterior, reached) @ self._counts)

    def _chances(self, others: NDArray[np.intp]) -> Floats:
        """Return how likely each of the points `others` is within the limits."""
        tried = np.array([self._number[point] for point in self._limits])
        values = np.array(list(self._limits.values()))[:, None]
        middle = values.mean()
        model = SizeModel(self._axes, [1])
        model.fit(tried, values - middle)
        posterior = model.posterior(tried, values - middle, others, np.ones((1, 1)))
        return np.asarray(special.ndtr(-(posterior.mean + middle) / posterior.deviation)[:, 0])

    def _belief(self, gains: Mapping[Point, Floats]) -> Floats:
        """Return what the prior expects of all points, as far as it predicted those that were measured."""
        return self._nothing if self._prior is None else self._prior.belief(gains)

    def _untried(self, tried: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the untried points in random order, so that ties are broken at random."""
        others = self._random.permutation(np.setdiff1d(np.arange(len(self._points)), tried))
        return others[:MAX_UNTRIED]


def _expected_improvement(posterior: Posterior, reached: Floats) -> Floats:
    """Return by how much each output is expected to exceed what was reached (Jones et al., 1998, eq. 15)."""
    standard = (posterior.mean - reached) / posterior.deviation
    density = np.exp(-(standard**2) / 2) / np.sqrt(2 * np.pi)
    return np.asarray(posterior.deviation * (standard * special.ndtr(standard) + density))
