"""A Gaussian process over parameters and sizes.

Parameters are axes along which points are more or less far apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import optimize


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The values of one parameter at all points.

    is_named: whether values are names, 0 or 1 apart; else they are logarithms, the largest distance being 1, and a
              value that is left to the method (NaN) is 1 away from every number
    """

    is_named: bool
    values: NDArray[np.float64]

    def distances(self, some: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return how far the points `some` (rows) are from `others` (columns)."""
        first, second = self.values[some][:, None], self.values[others][None, :]
        if self.is_named:
            return np.asarray(first != second, dtype=np.float64)
        apart = np.abs(first - second)
        return np.where(np.isnan(first) & np.isnan(second), 0.0, np.where(np.isnan(apart), 1.0, apart))


def axes_of(points: Sequence[Any]) -> list[Axis]:
    """Return one axis for each parameter that differs between `points`, which have `parameters` as candidates do."""
    columns = zip(*(point.parameters.values() for point in points), strict=True)
    return [_axis(column) for column in columns if len(set(column)) > 1]


def _axis(column: Sequence[str | int | None]) -> Axis:
    if any(isinstance(value, str) for value in column):
        names = list(dict.fromkeys(column))
        return Axis(True, np.array([names.index(value) for value in column], dtype=np.float64))
    logarithms = np.array([np.nan if value is None else np.log2(float(value)) for value in column])
    span = float(np.nanmax(logarithms) - np.nanmin(logarithms))
    return Axis(False, logarithms / (span or 1.0))


Floats = NDArray[np.float64]

_ROOT_3 = np.sqrt(3.0)
_STEPS = 20
_EXPECTED = {"scale": 1.0, "octaves": 4.0, "spread": 0.5, "noise": 0.02}
EXPECTED_SPREAD = _EXPECTED["spread"]
_DOUBT = {"scale": 0.3, "octaves": 0.7, "spread": 0.3, "noise": 0.7}
"""Prior of the covariance parameters, medians and standard deviations of their logarithms: how fast logarithms of times
change over the range of a parameter, over how many doublings of the size they correlate, their spread, their noise."""


MOST_SURPRISE = 6.0
"""Deviations of the prior that parameters of the covariance may be away from what is expected: without variance in the
values the likelihood would send them to infinity."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """Mean and standard deviation of each output at each point, arrays of (points, outputs)."""

    mean: Floats
    deviation: Floats


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """Eigenvalues and vectors of the covariances of the points and of the sizes, and those of all observations."""

    points: Floats
    point_vectors: Floats
    sizes: Floats
    size_vectors: Floats
    together: Floats


class SizeModel:
    """values[point, size] = Gaussian process with covariance spread^2 Kx(point, point') Kz(size, size') + noise^2.

    Every observed point is observed at all sizes, so that the covariance is a Kronecker product and one fit costs
    O(points^3 + sizes^3) (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2, 5.4.1;
    Kronecker products: Saatci, Scalable Inference for Structured Gaussian Process Models, 2011, section 5.2). Kx is a
    product of exponentials over the axes, which expects no more smoothness of numbers than of names; Kz is Matern 3/2
    in octaves of the size.
    """

    def __init__(self, axes: Sequence[Axis], sizes_bytes: Sequence[int]) -> None:
        self._axes = axes
        octaves = np.log2(np.asarray(sizes_bytes, dtype=float))
        self._octaves = np.abs(octaves[:, None] - octaves[None, :])
        count = len(axes)
        self._expected = np.log([*[_EXPECTED["scale"]] * count, *list(_EXPECTED.values())[1:]])
        self._doubt = np.array([*[_DOUBT["scale"]] * count, *list(_DOUBT.values())[1:]])
        self._parameters = self._expected

    @property
    def _reach(self) -> Floats:
        return np.asarray(MOST_SURPRISE * self._doubt)

    def reset(self) -> None:
        """Forget what was fitted; the noise is then what is expected, never nothing."""
        self._parameters = self._expected

    def fit(self, points: NDArray[np.intp], values: Floats) -> None:
        """Choose the parameters of the covariance that explain `values` (points, sizes; mean zero) best."""
        distances = [axis.distances(points, points) for axis in self._axes]
        # The line search may try parameters that no number can hold, and steps back from them by itself.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            optimum = optimize.minimize(
                self._misfit,
                self._parameters,
                (distances, values),
                "L-BFGS-B",
                True,
                bounds=list(zip(self._expected - self._reach, self._expected + self._reach, strict=True)),
                options={"maxiter": _STEPS},
            )
        if np.all(np.isfinite(optimum.x)):
            self._parameters = optimum.x

    def posterior(
        self, points: NDArray[np.intp], values: Floats, others: NDArray[np.intp], outputs: Floats
    ) -> Posterior:
        """Return what `values` at `points` say about `others`; row o of `outputs` weighs the sizes of output o."""
        scales, octaves, variance, noise = self._named(self._parameters)
        distances = [axis.distances(points, points) for axis in self._axes]
        point_kernel, size_kernel = self._point_kernel(scales, distances), _matern(self._octaves / octaves)
        spectrum = _spectrum(point_kernel, size_kernel, variance, noise)
        across = self._point_kernel(scales, [axis.distances(others, points) for axis in self._axes])
        weights = variance * across @ spectrum.point_vectors
        size_weights = outputs @ (spectrum.size_vectors * spectrum.sizes)
        rotated = spectrum.point_vectors.T @ values @ spectrum.size_vectors
        mean = weights @ (rotated / spectrum.together) @ size_weights.T
        before = variance * np.sum((outputs @ size_kernel) * outputs, axis=1)
        explained = weights**2 @ (1 / spectrum.together) @ (size_weights**2).T
        return Posterior(mean, np.sqrt(np.maximum(before - explained, 1e-12)))

    def _named(self, parameters: Floats) -> tuple[Floats, float, float, float]:
        """Return scales of the axes, octaves, variance of the values and of the noise."""
        octaves, spread, noise = np.exp(parameters[-3:])
        return np.exp(parameters[:-3]), float(octaves), float(spread**2), float(noise**2)

    def _point_kernel(self, scales: Floats, distances: Sequence[Floats]) -> Floats:
        together = sum((scale * distance for scale, distance in zip(scales, distances, strict=True)), start=np.zeros(1))
        return np.asarray(np.exp(-together))

    def _misfit(self, parameters: Floats, distances: Sequence[Floats], values: Floats) -> tuple[float, Floats]:
        """Return the negative logarithm of likelihood and prior, and its gradient."""
        scales, octaves, variance, noise = self._named(parameters)
        kx, kz = self._point_kernel(scales, distances), _matern(self._octaves / octaves)
        spectrum = _spectrum(kx, kz, variance, noise)
        rotated = spectrum.point_vectors.T @ values @ spectrum.size_vectors
        solved = rotated / spectrum.together
        weights = spectrum.point_vectors @ solved @ spectrum.size_vectors.T
        signal = spectrum.together - noise
        surprise = (parameters - self._expected) / self._doubt
        misfit = 0.5 * float(np.sum(rotated * solved) + np.sum(np.log(spectrum.together)) + np.sum(surprise**2))
        per_point, per_size = (
            (spectrum.sizes / spectrum.together).sum(1),
            (spectrum.points[:, None] / spectrum.together).sum(0),
        )
        by_points, by_sizes = weights @ kz @ weights.T, weights.T @ kx @ weights
        gradient = []
        for scale, distance in zip(scales, distances, strict=True):
            slope = -kx * scale * distance
            gradient.append(
                variance * (_trace(spectrum.point_vectors, slope) @ per_point - np.sum(by_points * slope)) / 2
            )
        reach = _ROOT_3 * self._octaves / octaves
        slope = reach**2 * np.exp(-reach)
        gradient.append(variance * (_trace(spectrum.size_vectors, slope) @ per_size - np.sum(by_sizes * slope)) / 2)
        gradient.append(np.sum(signal / spectrum.together) - np.sum(solved**2 * signal))
        gradient.append(noise * (np.sum(1 / spectrum.together) - np.sum(solved**2)))
        return misfit, np.array(gradient) + surprise / self._doubt


def _spectrum(kx: Floats, kz: Floats, variance: float, noise: float) -> _Spectrum:
    points, point_vectors = np.linalg.eigh(kx)
    sizes, size_vectors = np.linalg.eigh(kz)
    points, sizes = np.maximum(points, 0.0), np.maximum(sizes, 0.0)
    return _Spectrum(points, point_vectors, sizes, size_vectors, variance * np.outer(points, sizes) + noise)


def _matern(distance: Floats) -> Floats:
    reach = _ROOT_3 * distance
    return np.asarray((1 + reach) * np.exp(-reach))


def _trace(vectors: Floats, slope: Floats) -> Floats:
    """Return the diagonal of vectors^T slope vectors."""
    return np.asarray(np.sum(vectors * (slope @ vectors), axis=0))
