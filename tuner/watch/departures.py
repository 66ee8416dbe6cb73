"""Where the times of jobs and what was predicted for them part."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from chorale.tuner.watch.job_times import MIN_CALLS, CallTimes, Key, Snapshot

_DEVIATIONS = 4.0
"""Standard errors of a mean: less than one in ten thousand by chance, for means of ten calls and more."""


@dataclass(frozen=True, slots=True)
class Departure:
    """A program at a size whose calls take another time than predicted. calls: since the table was published"""

    digest: str
    collective: str
    size_bytes: int
    calls: CallTimes
    predicted_s: float

    @property
    def ratio(self) -> float:
        """The mean time of calls over the prediction."""
        return self.calls.mean_s / self.predicted_s

    @property
    def lost_s(self) -> float:
        """The seconds of all calls that were not predicted, or that were predicted in vain."""
        return abs(self.calls.seconds - self.calls.calls * self.predicted_s)


def departures(
    published: Snapshot, now: Snapshot, tolerance: float, predict: Callable[[Key], float | None]
) -> list[Departure]:
    """Return programs and sizes whose mean time lies beyond doubt outside of the prediction, the costliest first.

    published: what jobs had said when the present table was published
    tolerance: parts of the prediction by which a mean may be off, in either direction; four standard errors more
    predict:   seconds of a call; None for a program that the present table has not
    """
    rows = []
    for key, times in now.items():
        calls = times.since(published.get(key, CallTimes()))
        predicted_s = predict(key) if calls.calls >= MIN_CALLS else None
        if predicted_s is not None and _parts(calls, predicted_s, tolerance):
            rows.append(Departure(*key, calls, predicted_s))
    return sorted(rows, key=lambda row: -row.lost_s)


def _parts(calls: CallTimes, predicted_s: float, tolerance: float) -> bool:
    error_s = _DEVIATIONS * math.sqrt(calls.variance_of_mean)
    slowest_s, fastest_s = predicted_s * (1 + tolerance), predicted_s / (1 + tolerance)
    return calls.mean_s - error_s > slowest_s or calls.mean_s + error_s < fastest_s
