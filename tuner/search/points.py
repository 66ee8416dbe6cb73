"""Points of a space of Optuna's distributions: drawn, enumerated, moved a little, and the axes along which they lie."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from chorale.tuner.search.size_model import Axis, Floats

ParameterPoint = tuple[float | None, ...]
"""Optuna's internal number of each parameter, in the order of the space; None where it is not asked for."""

ABSENT = -1.0
"""Stands for no value among the numbers of names."""


@dataclass(frozen=True, slots=True)
class ParameterSpace:
    """Parameters by name, in any combination; Optuna knows no others."""

    distributions: Mapping[str, BaseDistribution]

    def point(self, parameters: Mapping[str, Any]) -> ParameterPoint:
        """Return the point with these values; what no number stands for, such as an unknown name, is left out."""
        return tuple(
            _number(distribution, parameters[name]) if name in parameters else None
            for name, distribution in self.distributions.items()
        )

    def parameters(self, point: ParameterPoint) -> dict[str, Any]:
        """Return the values at `point`, without those that it leaves out."""
        values = zip(self.distributions.items(), point, strict=True)
        return {name: one.to_external_repr(value) for (name, one), value in values if value is not None}

    def allowed(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        """Return the numbers of those of `parameters` that are in the space now."""
        numbers = dict(zip(self.distributions, self.point(parameters), strict=True))
        return {name: one for name, one in numbers.items() if one is not None and self._has(name, one)}

    def axes(self, points: Sequence[ParameterPoint]) -> list[Axis]:
        """Return one axis for each parameter."""
        columns = zip(*points, strict=True)
        return [_axis(one, column) for one, column in zip(self.distributions.values(), columns, strict=True)]

    def grid(self, most: int) -> list[ParameterPoint] | None:
        """Return all points that leave nothing out; None if there are more than `most`."""
        counts = [value_count(distribution) for distribution in self.distributions.values()]
        if math.prod(counts) > most:
            return None
        columns = [
            [value_at(one, (step + 0.5) / count) for step in range(int(count))]
            for one, count in zip(self.distributions.values(), counts, strict=True)
        ]
        return list(product(*columns))

    def drawn(self, random: np.random.Generator, count: int) -> Iterator[tuple[float, ...]]:
        """Yield points that leave nothing out."""
        for shares in random.random((count, len(self.distributions))):
            yield tuple(value_at(one, share) for one, share in zip(self.distributions.values(), shares, strict=True))

    def near(
        self, point: ParameterPoint, reach: float, random: np.random.Generator, count: int
    ) -> Iterator[ParameterPoint]:
        """Yield points where some values of `point` moved by about the part `reach` of their range.

        Names change to any other. What `point` leaves out is drawn.
        """
        for drawn in self.drawn(random, count):
            moved = random.random(len(point)) < max(0.3, 1 / len(point))
            moved[random.integers(len(point))] = True
            steps = random.normal(0, reach, len(point))
            yield tuple(
                far if before is None else _moved(one, before, far, step) if moves else before
                for one, before, far, step, moves in zip(
                    self.distributions.values(), point, drawn, steps, moved, strict=True
                )
            )

    def _has(self, name: str, number: float) -> bool:
        return bool(self.distributions[name]._contains(number))


def value_count(distribution: BaseDistribution) -> float:
    """Return how many values there are, infinity for all numbers of a range."""
    if isinstance(distribution, CategoricalDistribution):
        return len(distribution.choices)
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    if distribution.step is None:
        return 1 if distribution.low == distribution.high else math.inf
    return round((distribution.high - distribution.low) / distribution.step) + 1


def value_at(distribution: BaseDistribution, share: float) -> float:
    """Return the number below which the part `share` of the values lies, as Optuna counts them."""
    count = value_count(distribution)
    if isinstance(distribution, CategoricalDistribution):
        return float(min(int(share * count), count - 1))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    low, high = _edges(distribution)
    if distribution.log:
        number = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
        number = round(number) if isinstance(distribution, IntDistribution) else number
    elif distribution.step is None:
        number = low * (1 - share) + high * share  # the range may be wider than any number
    else:
        number = distribution.low + distribution.step * min(int(share * count), count - 1)
    return float(min(max(number, distribution.low), distribution.high))


def share_of(distribution: FloatDistribution | IntDistribution, number: float) -> float:
    """Return which part of the values of a range lies below `number`; beyond 0 to 1 outside of it."""
    low, high = _edges(distribution)
    if low == high:
        return 0.5
    if distribution.log:
        return (math.log(max(number, 1e-300)) - math.log(low)) / (math.log(high) - math.log(low))
    if distribution.step is None:
        return (number / 2 - low / 2) / (high / 2 - low / 2)
    return ((number - distribution.low) / distribution.step + 0.5) / value_count(distribution)


def _edges(distribution: FloatDistribution | IntDistribution) -> tuple[float, float]:
    if distribution.log and isinstance(distribution, IntDistribution):
        return distribution.low - 0.5, distribution.high + 0.5
    return distribution.low, distribution.high


def _moved(distribution: BaseDistribution, before: float, drawn: float, step: float) -> float:
    if isinstance(distribution, CategoricalDistribution):
        return drawn
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    count = value_count(distribution)
    least = math.copysign(1 / count, step) if count > 1 and abs(step) < 1 / count else step
    return value_at(distribution, min(max(share_of(distribution, before) + least, 0.0), 1.0))


def _number(distribution: BaseDistribution, value: Any) -> float | None:
    try:
        return float(distribution.to_internal_repr(value))
    except (TypeError, ValueError):
        return None


def _axis(distribution: BaseDistribution, column: Sequence[float | None]) -> Axis:
    if isinstance(distribution, CategoricalDistribution):
        ordered = _ordered(distribution.choices)
        if ordered is None:
            return Axis(True, np.array([ABSENT if value is None else value for value in column]))
        return Axis(False, np.array([math.nan if value is None else ordered[int(value)] for value in column]))
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    return Axis(False, np.array([math.nan if value is None else share_of(distribution, value) for value in column]))


def _ordered(choices: Sequence[Any]) -> Floats | None:
    """Return where numbers lie between 0 and 1, by their logarithms where they have some; None for names.

    As on the axes of candidates, None is no number, and as far from all.
    """
    numbers = [choice for choice in choices if choice is not None]
    if len(numbers) < 3 or any(isinstance(one, bool) or not isinstance(one, int | float) for one in numbers):
        return None
    values = np.array([math.nan if choice is None else float(choice) for choice in choices])
    values = np.log2(values) if np.nanmin(values) > 0 else values
    span = np.nanmax(values) - np.nanmin(values)
    return np.asarray((values - np.nanmin(values)) / span) if np.isfinite(span) and span > 0 else None
