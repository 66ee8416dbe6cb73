"""Chooses the next point to measure with a Gaussian process over parameters and sizes.

Each parameter is an axis that defines distances between its values. Priors are weighted by how well they predict the
measurements. The next point is the one with the highest expected improvement.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import optimize, special
from chorale.tuner.trials.records import Candidate

Floats = NDArray[np.float64]

MIN_TRIALS = 2
"""Minimum number of measured points at which priors get any weight."""

FIRST_STARTS = 2
"""Number of points chosen by the priors alone. The second is tried only if a prior then has a weight above 0."""

CAUTION = 1.0
"""Caution about priors: they are weighted as if this many additional points had not shown the expected gains."""

LEAST_SKILL = 0.2
"""Minimum fraction of the variance of left-out measurements that a prior must predict; weaker priors are dropped."""

MOST_SPREAD = 0.5
"""Largest standard deviation of a prior's expected gains. A prior that varies more is scaled down to this value."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Prior knowledge: expected gains (logarithms of speed-ups) of some points at each size of the search.

    name:   the prior's origin, for display
    source: name of the campaign or other source, as users write it in the key `prior`
    """

    gains: Mapping[Any, Floats] = field(default_factory=dict)
    name: str = "a prior"
    source: str = ""


def nearest_sizes(known_bytes: Sequence[int], sizes_bytes: Sequence[int]) -> NDArray[np.intp]:
    """Return for each of `sizes_bytes` the index of the nearest size in `known_bytes`, by distance in octaves."""
    octaves = np.log2(np.array(sizes_bytes, dtype=float))[:, None] - np.log2(np.array(known_bytes, dtype=float))
    return np.asarray(np.abs(octaves).argmin(axis=1))


class PriorMix:
    """Combines several priors about the same points, weighted by how well each prior predicts the measurements.

    priors: sorted by similarity of conditions, the most similar first; in the first trials, similar priors count more

    Only differences between points are used, because a prior may be wrong about the baselines.
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
        """Return the points to try first.

        The first has the highest expected gain, averaged over sizes. Each following point is the one that most improves
        the best expected gains at the sizes.
        """
        if not self.priors:
            return []
        known = np.flatnonzero(self._known.any(axis=0))
        gains = np.average(self._expected, axis=0, weights=0.5 ** np.arange(len(self.priors)))[known]
        chosen = [int(np.argmax(gains.mean(axis=1)))]
        while len(chosen) < FIRST_STARTS:
            chosen.append(int(np.argmax(np.maximum(gains, gains[chosen].max(axis=0)).mean(axis=1))))
        return [self._points[int(known[number])] for number in dict.fromkeys(chosen)]

    def weights(self, measured: Mapping[Any, Floats]) -> Floats:
        """Return the weight of each prior, from 0 (dropped) to 1.

        The weights are non-negative least-squares coefficients: the priors that have skill, weighted this way, predict
        the measurements best. Ridge regularization shrinks the weights towards 0.
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
        if skilled:  # each coefficient is shrunk in proportion to its prior's spread
            expected = expected[skilled]
            doubt = np.sqrt(CAUTION * np.sum(expected**2, axis=(1, 2)) / len(values) + 1e-12)
            rows = np.vstack([expected.reshape(len(expected), -1).T, np.diag(doubt)])
            solution, _ = optimize.nnls(rows, np.concatenate([values.ravel(), np.zeros(len(doubt))]))
            weights[skilled] = np.minimum(solution, 1.0)
        return weights

    def document(self, measured: Mapping[Any, Floats]) -> list[dict[str, Any]]:
        weights, known = self.weights(measured).tolist(), self._known.sum(axis=-1).tolist()
        return [
            {"name": prior.name, "points": points, "weight": round(weight, 3)}
            for prior, points, weight in zip(self.priors, known, weights, strict=True)
        ]

    def belief(self, measured: Mapping[Any, Floats]) -> Floats:
        """Return the gains (points, sizes) that the weighted priors expect. Only differences between points matter."""
        return np.asarray(np.tensordot(self.weights(measured), self._expected, axes=1))


def has_skill(expected: Floats, values: Floats) -> bool:
    """Return whether a prior's `expected` gains predict the measured `values`.

    Both are float64[points, sizes] with columns of mean 0. The test is leave-one-out cross-validation. With only two
    points, it suffices that the better point is predicted.
    """
    count, freedom = len(values), len(values) / max(len(values) - 1, 1)
    both, alone = np.sum(expected * values, axis=1), np.sum(expected**2, axis=1)
    if count <= MIN_TRIALS:
        return bool(both.sum() > 0)
    rest = np.maximum(alone.sum() - freedom * alone, 0.0) * (1 + CAUTION / (count - 1)) + 1e-12
    slopes = np.clip((both.sum() - freedom * both) / rest, 0.0, 1.0)
    missed = np.sum((values - slopes[:, None] * expected) ** 2)
    return bool(missed <= (1 - LEAST_SKILL) * np.sum(values**2))


def _expected(prior: Prior, points: Sequence[Any]) -> Floats:
    """Return the gains that `prior` expects for `points`, minus their mean, with limited spread; 0 if not known."""
    known = np.array([prior.gains[point] for point in points if point in prior.gains])
    mean = known.mean(axis=0)
    scale = max(1.0, float((known - mean).std()) / MOST_SPREAD)
    return np.array([(prior.gains.get(point, mean) - mean) / scale for point in points])


@dataclass(frozen=True, slots=True, eq=False)
class Axis:
    """The values of one parameter at all points of the search space, and the distances between them.

    is_named: whether values are names, with distance 0 or 1. Otherwise they are logarithms, scaled so that the largest
              distance is 1; an unset value (NaN) has distance 1 from every number.
    """

    is_named: bool
    values: NDArray[np.float64]

    def distances(self, some: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return a matrix of distances between the points with indices `some` (rows) and `others` (columns)."""
        first, second = self.values[some][:, None], self.values[others][None, :]
        if self.is_named:
            return np.asarray(first != second, dtype=np.float64)
        apart = np.abs(first - second)
        return np.where(np.isnan(first) & np.isnan(second), 0.0, np.where(np.isnan(apart), 1.0, apart))


def axes_of(points: Sequence[Any]) -> list[Axis]:
    """Return one axis for each parameter that differs between `points`. Points have `parameters`, like `Candidate`."""
    axes = []
    for column in zip(*(point.parameters.values() for point in points), strict=True):
        if len(set(column)) == 1:
            continue
        if any(isinstance(value, str) for value in column):
            names = list(dict.fromkeys(column))
            axes.append(Axis(True, np.array([names.index(value) for value in column], dtype=np.float64)))
            continue
        # 0 has no logarithm. So "no pipeline" (0) is treated like an unset value: distance 1 from every other value.
        logarithms = np.array([np.log2(float(value)) if value else np.nan for value in column])
        span = float(np.nanmax(logarithms) - np.nanmin(logarithms))
        axes.append(Axis(False, logarithms / (span or 1.0)))
    return axes


_ROOT_3 = np.sqrt(3.0)
_EXPECTED = {"scale": 1.0, "octaves": 4.0, "spread": 0.5, "noise": 0.02}
_DOUBT = {"scale": 0.3, "octaves": 0.7, "spread": 0.3, "noise": 0.7}
"""Prior of the covariance parameters: their medians (`_EXPECTED`) and standard deviations of their logarithms.

scale:   how fast gains change over a parameter's range
octaves: number of doublings of the size over which gains stay correlated
spread:  standard deviation of gains between points
noise:   standard deviation of gains due to measurement noise
"""


MOST_SURPRISE = 6.0
"""Maximum distance of covariance parameters from their medians, in standard deviations of their prior.

Without this limit, constant measurements would drive the parameters to infinity.
"""


@dataclass(frozen=True, slots=True)
class _Spectrum:
    """Eigenvalues (`points`, `sizes`) and eigenvectors of the covariances of points and of sizes.

    together: eigenvalues of the covariance of all observations, with noise
    """

    points: Floats
    point_vectors: Floats
    sizes: Floats
    size_vectors: Floats
    together: Floats


class SizeModel:
    """Models gains as a Gaussian process with covariance spread^2 Kx(point, point') Kz(size, size') + noise^2.

    Every observed point is observed at all sizes, so the covariance is a Kronecker product and one fit costs
    O(points^3 + sizes^3) (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, sections 2.2, 5.4.1;
    Kronecker products: Saatci, Scalable Inference for Structured Gaussian Process Models, 2011, section 5.2). Kx is a
    product of exponentials over the axes, so times may change as abruptly with a numeric parameter as with a named one;
    Kz is Matern 3/2 in octaves of the size.
    """

    def __init__(self, axes: Sequence[Axis], sizes_bytes: Sequence[int]) -> None:
        self._axes = axes
        octaves = np.log2(np.asarray(sizes_bytes, dtype=float))
        self._octaves = np.abs(octaves[:, None] - octaves[None, :])
        count = len(axes)
        self._expected = np.log([*[_EXPECTED["scale"]] * count, *list(_EXPECTED.values())[1:]])
        self._doubt = np.array([*[_DOUBT["scale"]] * count, *list(_DOUBT.values())[1:]])
        self._parameters = self._expected

    def reset(self) -> None:
        """Set the covariance parameters back to their prior medians, so that the noise is not zero."""
        self._parameters = self._expected

    def fit(self, points: NDArray[np.intp], values: Floats) -> None:
        """Choose the covariance parameters that best explain `values`, an array of (points, sizes) with mean zero."""
        distances = [axis.distances(points, points) for axis in self._axes]
        # The line search may try parameters with which numbers overflow; it then steps back by itself.
        reach = MOST_SURPRISE * self._doubt
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            optimum = optimize.minimize(
                self._misfit,
                self._parameters,
                (distances, values),
                "L-BFGS-B",
                True,
                bounds=list(zip(self._expected - reach, self._expected + reach, strict=True)),
                options={"maxiter": 20},
            )
        if np.all(np.isfinite(optimum.x)):
            self._parameters = optimum.x

    def posterior(
        self, points: NDArray[np.intp], values: Floats, others: NDArray[np.intp], outputs: Floats
    ) -> tuple[Floats, Floats]:
        """Predict outputs (weighted means over sizes) at the points with indices `others` from `values` at `points`.

        Row o of `outputs` contains the weight of each size in output o.

        Return the mean and the standard deviation of each output at each point, arrays of (points, outputs).
        """
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
        return mean, np.sqrt(np.maximum(before - explained, 1e-12))

    def _named(self, parameters: Floats) -> tuple[Floats, float, float, float]:
        """Split covariance parameters into scales of axes, length scale in octaves, variances of values and noise."""
        octaves, spread, noise = np.exp(parameters[-3:])
        return np.exp(parameters[:-3]), float(octaves), float(spread**2), float(noise**2)

    def _point_kernel(self, scales: Floats, distances: Sequence[Floats]) -> Floats:
        together = sum((scale * distance for scale, distance in zip(scales, distances, strict=True)), start=np.zeros(1))
        return np.asarray(np.exp(-together))

    def _misfit(self, parameters: Floats, distances: Sequence[Floats], values: Floats) -> tuple[float, Floats]:
        """Return -log(likelihood * prior) of the covariance parameters, and its gradient."""
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
    """Return the diagonal of the matrix product vectors^T slope vectors."""
    return np.asarray(np.sum(vectors * (slope @ vectors), axis=0))


GROWTH = 1.25
"""The covariance is refitted each time the number of observations has grown by this factor."""

MOST_GAIN = 12.0
"""Largest plausible logarithm of a speed-up. Larger measured values are clipped."""

MAX_UNTRIED = 4000
"""Maximum number of untried points compared for one choice. If there are more, a random sample is compared."""


@cache
def _linear_algebra() -> Any:
    """Return an object that limits the threads of the linear algebra libraries that numpy and scipy use.

    With matrices of a few hundred rows, threads mostly wait for each other: on a busy machine a choice took fifty times
    as long with two threads as with one. Only loaded libraries can be limited, so numpy and scipy are imported first.
    """
    _ = optimize.minimize, special.ndtr
    from threadpoolctl import ThreadpoolController  # noqa: PLC0415 - the command reference is built without it

    return ThreadpoolController()


class AcquisitionOptimizer:
    """Chooses the point with the highest expected improvement.

    points:   all points in the space
    together: whether one point must be used at all sizes; otherwise each size may have its own best point
    weights:  weight of each size; empty if all are equal
    prior:    prior knowledge; the model learns how much measurements differ from it
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

    def next(
        self, gains: Mapping[Candidate, Floats], failed: Sequence[Candidate], busy: Sequence[Candidate]
    ) -> Candidate:
        """Return the best untried point. Points in the arguments count as tried; at least one other point must exist.
        Never raises, even for invalid values.

        If the model fails, its fitted parameters are dropped; if it fails again, a random point is returned. `notes`
        counts both kinds of failure.

        gains:  logarithm of the speed-up over the baseline at each size, for at least one measured point
        failed: points without a measurement; treated like the slowest measured point
        busy:   pending points; treated as average until they have results (constant liar: Ginsbourger, Le Riche and
          Carraro, Kriging is well-suited to parallelize optimization, 2010, section 3.2)
        """
        usable = {point: np.clip(np.nan_to_num(values), -MOST_GAIN, MOST_GAIN) for point, values in gains.items()}
        with _linear_algebra().limit(limits=1, user_api="blas"), np.errstate(all="ignore"):
            for note in ("the model was reset to its prior", "a point was drawn at random"):
                with suppress(np.linalg.LinAlgError, ValueError, ArithmeticError):
                    if (point := self._next(usable, failed, busy)) is not None:
                        return point
                self.notes[note] += 1
                self._model.reset()  # the noise expected by default keeps the matrices invertible
                self._fitted = len(gains) + len(failed) + len(busy)
        tried = np.array([self._number[point] for point in (*gains, *failed, *busy)])
        return self._points[int(self._untried(tried)[0])]

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
        mean, deviation = self._model.posterior(tried, values, others, self._outputs)
        mean = mean + (belief[others] + middle) @ self._outputs.T
        reached = np.maximum(raw @ self._outputs.T, 0.0).max(axis=0)
        # Expected improvement of each output over the best value so far (Jones et al., 1998, eq. 15).
        standard = (mean - reached) / deviation
        density = np.exp(-(standard**2) / 2) / np.sqrt(2 * np.pi)
        expected = np.asarray(deviation * (standard * special.ndtr(standard) + density)) @ self._counts
        if not np.all(np.isfinite(expected)):
            return None
        return self._points[int(others[int(np.argmax(expected))])]

    def _untried(self, tried: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the indices of untried points (at most `MAX_UNTRIED`) in random order, to break ties at random."""
        others = self._random.permutation(np.setdiff1d(np.arange(len(self._points)), tried))
        return others[:MAX_UNTRIED]
