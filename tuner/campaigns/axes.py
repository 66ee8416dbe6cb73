"""Parameters as axes along which points are more or less far apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.tuner.campaigns.records import Candidate


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
        left, right = self.values[some][:, None], self.values[others][None, :]
        if self.is_named:
            return np.asarray(left != right, dtype=np.float64)
        apart = np.abs(left - right)
        return np.where(np.isnan(left) & np.isnan(right), 0.0, np.where(np.isnan(apart), 1.0, apart))


def axes_of(points: Sequence[Candidate]) -> list[Axis]:
    """Return one axis for each parameter that differs between `points`."""
    columns = zip(*(point.parameters.values() for point in points), strict=True)
    return [_axis(column) for column in columns if len(set(column)) > 1]


def _axis(column: Sequence[str | int | None]) -> Axis:
    if any(isinstance(value, str) for value in column):
        names = list(dict.fromkeys(column))
        return Axis(True, np.array([names.index(value) for value in column], dtype=np.float64))
    logarithms = np.array([np.nan if value is None else np.log2(float(value)) for value in column])
    span = float(np.nanmax(logarithms) - np.nanmin(logarithms))
    return Axis(False, logarithms / (span or 1.0))
