"""Durations that are known between two bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """From `low_s` to `high_s` seconds."""

    low_s: float
    high_s: float

    @staticmethod
    def around(values_s: Sequence[float], factor: float) -> Span:
        """Return from the mean of `values_s`, which must not be empty, over `factor` to the mean times `factor`."""
        mean_s = sum(values_s) / len(values_s)
        return Span(mean_s / factor, mean_s * factor)

    def __add__(self, other: Span) -> Span:
        return Span(self.low_s + other.low_s, self.high_s + other.high_s)

    def times(self, low: float, high: float | None = None) -> Span:
        """Return the time of `low` to `high` of these, one after the other; of `low` without `high`."""
        return Span(self.low_s * low, self.high_s * (low if high is None else high))

    @property
    def rounded(self) -> list[float]:
        """Both bounds, to a hundredth of a second."""
        return [round(self.low_s, 2), round(self.high_s, 2)]
