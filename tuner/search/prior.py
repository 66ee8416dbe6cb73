"""What is known from elsewhere about the points of a space, believed as far as it predicts what is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import optimize

Floats = NDArray[np.float64]

MIN_TRIALS = 2
"""Measured points before a prior is believed at all."""

FIRST_STARTS = 2
"""Points that priors alone choose. The second is tried only if the first made them believed."""

CAUTION = 1.0
"""Measured points, each as far off as a prior says they vary, that say that it predicts nothing."""

LEAST_SKILL = 0.2
"""Share of the variance of points that the others and a prior must explain, or the prior is dropped."""

MOST_SPREAD = 0.5
"""Standard deviation of expected gains; priors that vary more are taken to have another scale, and scaled to it."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Expected gains of points, logarithms of speed-ups at each size of the search; other points are unknown.

    name:   where they come from, for people
    source: the campaign, or what else, that a user names
    """

    gains: Mapping[Any, Floats] = field(default_factory=dict)
    name: str = "a prior"
    source: str = ""


def nearest_sizes(known_bytes: Sequence[int], sizes_bytes: Sequence[int]) -> NDArray[np.intp]:
    """Return for each of `sizes_bytes` the number of that among `known_bytes` which is fewest octaves away."""
    octaves = np.log2(np.array(sizes_bytes, dtype=float))[:, None] - np.log2(np.array(known_bytes, dtype=float))
    return np.asarray(np.abs(octaves).argmin(axis=1))


class PriorMix:
    """Several priors about the same points, each believed as far as it predicts what was measured.

    priors: the nearest circumstances first: what is to be tried first depends most on them

    Only differences between points count: a prior may be wrong about the baselines.
    """

    def __init__(self, priors: Sequence[Prior], points: Sequence[Any]) -> None:
        self.priors = [prior for prior in priors if any(point in prior.gains for point in points)]
        self._points = points
        self._number = {point: number for number, point in enumerate(points)}
        known = [[point in prior.gains for point in points] for prior in self.priors]
        self._known = np.array(known, dtype=bool).reshape(len(self.priors), len(points))
        self._expected = np.array([_expected(prior, points) for prior in self.priors])

    def __bool__(self) -> bool:
        return bool(self.priors)

    def starts(self) -> list[Any]:
        """Return the points to try first: that with the best mean over sizes, then those that add most at any size."""
        if not self.priors:
            return []
        known = np.flatnonzero(self._known.any(axis=0))
        gains = np.average(self._expected, axis=0, weights=0.5 ** np.arange(len(self.priors)))[known]
        chosen = [int(np.argmax(gains.mean(axis=1)))]
        while len(chosen) < FIRST_STARTS:
            chosen.append(int(np.argmax(np.maximum(gains, gains[chosen].max(axis=0)).mean(axis=1))))
        return [self._points[int(known[number])] for number in dict.fromkeys(chosen)]

    def weights(self, measured: Mapping[Any, Floats]) -> Floats:
        """Return how far to believe each prior, 0 to 1; 0 for those that are dropped.

        The coefficients, none negative, by which priors with skill predict best what was measured, drawn to 0
        (least squares with a ridge).
        """
        weights = np.zeros(len(self.priors))
        tried = [point for point in measured if np.all(np.isfinite(measured[point]))]
        if len(tried) < MIN_TRIALS or not self.priors:
            return weights
        values = np.array([measured[point] for point in tried])
        values = values - values.mean(axis=0)
        expected = self._expected[:, [self._number[point] for point in tried]]
        expected = expected - expected.mean(axis=1, keepdims=True)
        skilled = [number for number, one in enumerate(expected) if has_skill(one, values)]
        if skilled:
            weights[skilled] = _ridge(expected[skilled], values)
        return weights

    def document(self, measured: Mapping[Any, Floats]) -> list[dict[str, Any]]:
        """Return name, points and weight of each prior, as JSON."""
        weights, known = self.weights(measured).tolist(), self._known.sum(axis=-1).tolist()
        return [
            {"name": prior.name, "points": points, "weight": round(weight, 3)}
            for prior, points, weight in zip(self.priors, known, weights, strict=True)
        ]

    def belief(self, measured: Mapping[Any, Floats]) -> Floats:
        """Return the gains that the priors together expect of all points, (points, sizes); only differences matter."""
        return np.asarray(np.tensordot(self.weights(measured), self._expected, axes=1))


def has_skill(expected: Floats, values: Floats) -> bool:
    """Whether `expected` predicts each row of `values` (points, sizes) from all others; both are centred by column.

    By leaving out one point after the other. Two points say only which is better.
    """
    count, freedom = len(values), len(values) / max(len(values) - 1, 1)
    both, alone = np.sum(expected * values, axis=1), np.sum(expected**2, axis=1)
    if count <= MIN_TRIALS:
        return bool(both.sum() > 0)
    rest = np.maximum(alone.sum() - freedom * alone, 0.0) * (1 + CAUTION / (count - 1)) + 1e-12
    slopes = np.clip((both.sum() - freedom * both) / rest, 0.0, 1.0)
    missed = np.sum((values - slopes[:, None] * expected) ** 2)
    return bool(missed <= (1 - LEAST_SKILL) * np.sum(values**2))


def _ridge(expected: Floats, values: Floats) -> Floats:
    """Return the coefficients of the (priors, points, sizes) `expected`, each drawn to 0 by as much as it varies."""
    doubt = np.sqrt(CAUTION * np.sum(expected**2, axis=(1, 2)) / len(values) + 1e-12)
    rows = np.vstack([expected.reshape(len(expected), -1).T, np.diag(doubt)])
    solution, _ = optimize.nnls(rows, np.concatenate([values.ravel(), np.zeros(len(doubt))]))
    return np.asarray(np.minimum(solution, 1.0))


def _expected(prior: Prior, points: Sequence[Any]) -> Floats:
    """Return what `prior` expects of `points` above the mean of those that it knows; 0 of others."""
    known = np.array([prior.gains[point] for point in points if point in prior.gains])
    mean = known.mean(axis=0)
    scale = max(1.0, float((known - mean).std()) / MOST_SPREAD)
    return np.array([(prior.gains.get(point, mean) - mean) / scale for point in points])
