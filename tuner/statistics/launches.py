"""Times of programs that run side by side in launches, and how far any two are apart.

Repetitions of a launch share its mode, so that each launch counts once, with the median of its repetitions. Programs
are compared within launches: what slows a whole launch, drift too, slows both. The rest varies from launch to launch
by program, and its variance is that of all programs, drawn towards by the variance of each pair (Smyth, Linear models
and empirical Bayes methods, 2004, section 3, with a fixed weight).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import special

Floats = NDArray[np.float64]

MAX_POOLED = 8.0
"""Degrees of freedom that the variance of all programs has at most beside that of a pair."""

LEAST_DEVIATION = 5e-4
"""Standard deviation of the logarithm of a time in a launch that no clock is better than."""

OUTLIER_SCALES, OUTLIER_LEAST = 6.0, 0.1
"""A launch is an outlier of a program where its residual is more than so many robust deviations and so large."""


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """Of every program from one of them, in logarithms of times: how much slower it is.

    mean:      nan where they share no launch
    deviation: standard error of the mean
    freedom:   degrees of freedom of the standard error
    launches:  that both were in
    """

    mean: Floats
    deviation: Floats
    freedom: Floats
    launches: Floats

    def half_width(self, error: float) -> Floats:
        """Return by how much each mean is off with probability `error` at most, to one side."""
        with np.errstate(invalid="ignore"):
            return np.where(self.deviation == 0, 0.0, student(error, self.freedom) * self.deviation)


def student(error: float, freedom: Floats) -> Floats:
    """Return the quantile that Student's t exceeds with probability `error`."""
    return np.array([_student(error, float(number)) for number in freedom.ravel()]).reshape(freedom.shape)


@lru_cache(maxsize=4096)
def _student(error: float, freedom: float) -> float:
    return float("inf") if freedom <= 0 else float(-special.stdtrit(freedom, error))


@dataclass(slots=True)
class LaunchTable:
    """Logarithms of times of `names`, one column for each launch; nan where a program was not in it."""

    names: Sequence[str]
    _columns: list[Floats] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Launches so far."""
        return len(self._columns)

    @property
    def logarithms(self) -> Floats:
        """Array of (names, launches)."""
        return np.array(self._columns).T if self._columns else np.empty((len(self.names), 0))

    def add(self, times_s: Mapping[str, Sequence[float]]) -> None:
        """Add a launch: the seconds of all repetitions by name; names without usable times were not in it."""
        self._columns.append(np.array([launch_value(times_s.get(name, ())) for name in self.names]))

    def differences(self, index: int) -> Differences:
        """Return how far the others are from program number `index`."""
        logarithms = self.logarithms
        apart = logarithms - logarithms[index]
        both = np.isfinite(apart)
        launches = both.sum(axis=1).astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.where(launches > 0, np.where(both, apart, 0.0).sum(axis=1) / launches, np.nan)
            scatter = np.where(both, (apart - mean[:, None]) ** 2, 0.0).sum(axis=1)
            pooled, pooled_freedom = self.pooled()
            others = np.maximum(pooled_freedom - np.maximum(launches - 1, 0.0), 0.0)  # without those of the pair
            weight = np.minimum(others, MAX_POOLED)
            freedom = weight + np.maximum(launches - 1, 0.0)
            variance = (weight * 2 * pooled + scatter) / np.maximum(freedom, 1.0)
            variance = np.maximum(variance, 2 * LEAST_DEVIATION**2)
            deviation = np.where((launches > 0) & (freedom > 0), np.sqrt(variance / launches), np.inf)
        deviation[index], mean[index] = 0.0, 0.0
        return Differences(mean, deviation, freedom, launches)

    def pooled(self) -> tuple[float, float]:
        """Return the variance of a time from launch to launch, beside that of the launch itself, and its freedom."""
        squares, freedom = 0.0, 0.0
        for block in self._blocks():
            squares += float(np.sum(_residuals(block) ** 2))
            freedom += (block.shape[0] - 1) * (block.shape[1] - 1)
        return (squares / freedom if freedom else 0.0), freedom

    def outliers(self) -> list[tuple[str, int]]:
        """Return programs and numbers of launches (from 0) that are far from what the others suggest."""
        logarithms = self.logarithms
        if self.count < 3:
            return []
        with np.errstate(invalid="ignore"):
            level = logarithms - np.nanmedian(logarithms, axis=1, keepdims=True)
            residual = level - np.nanmedian(level, axis=0, keepdims=True)
        usual = 1.4826 * float(np.nanmedian(np.abs(residual)))
        far = np.abs(residual) > max(OUTLIER_SCALES * usual, OUTLIER_LEAST)
        return [(self.names[row], int(column)) for row, column in np.argwhere(far)]

    def _blocks(self) -> list[Floats]:
        """Return the launches with the same programs in them as arrays without gaps."""
        logarithms = self.logarithms
        grouped: dict[bytes, list[int]] = {}
        present = np.isfinite(logarithms)
        for column in range(self.count):
            grouped.setdefault(present[:, column].tobytes(), []).append(column)
        blocks = [
            logarithms[np.ix_(np.flatnonzero(present[:, columns[0]]), np.array(columns))]
            for columns in grouped.values()
        ]
        return [block for block in blocks if min(block.shape) > 1]


def launch_value(times_s: Sequence[float]) -> float:
    """Return the logarithm of the median time of a launch, nan where no time is usable."""
    times = np.asarray(times_s, dtype=float)
    times = times[np.isfinite(times) & (times > 0)]
    return float(np.log(np.median(times))) if len(times) else float("nan")


def _residuals(block: Floats) -> Floats:
    """Return what is left of (programs, launches) without the means of both."""
    return np.asarray(block - block.mean(axis=1, keepdims=True) - block.mean(axis=0, keepdims=True) + block.mean())
