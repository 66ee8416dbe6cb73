"""When baselines are measured again, and how noisy a launch is, which they tell by the way.

Baselines beside every trial are most of what a campaign measures. While they stay as they were, the next control comes
after twice as many trials; when they move, sooner, and what was measured of them before counts no more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from chorale.tuner.statistics.contest import Floats

Times = tuple[float, ...]
BaselineTimes = Mapping[str, tuple[Times, ...]]
"""Name of a baseline -> the seconds of its repetitions at each size."""

LEAST_MOVE = 0.02
"""Logarithm by which baselines must have moved to count as moved."""

MOVE_DEVIATIONS = 3.0
LONGEST_INTERVAL = 16
"""Trials after which baselines are measured again in any case."""

FEW = 8
"""Deviations below which their scale is not trusted alone."""


class Controls:
    """The baselines of a launch, as they were measured beside some of its trials."""

    def __init__(self, interval: int = 1) -> None:
        self._pools: dict[str, list[Times]] = {}
        self._interval = interval
        self._next = 0
        self._squares, self._freedom = 0.0, 0
        self._within: list[float] = []

    def is_due(self, trials: int) -> bool:
        """Whether the baselines are measured beside the trial that comes after `trials` others."""
        return not self._pools or trials >= self._next

    @property
    def times_s(self) -> dict[str, tuple[Times, ...]]:
        """Seconds of all repetitions since the baselines last moved."""
        return {name: tuple(sizes) for name, sizes in self._pools.items()}

    @property
    def repeats(self) -> int:
        """Repetitions that bring the error of their median to about `TRIAL_ERROR`, as far as repeating helps."""
        within = float(np.median(self._within)) if self._within else 0.0
        return min(max(math.ceil((within / TRIAL_ERROR) ** 2), 1), MOST_REPEATS)

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm of a time from launch to launch, as far as it is known."""
        within = float(np.median(self._within)) if self._within else 0.0
        return max(within, (self._squares / self._freedom) ** 0.5 if self._freedom else 0.0)

    def add(self, measured: BaselineTimes, trials: int) -> None:
        """Take a control that was measured beside the trial after `trials` others."""
        changes = self._changes(measured)
        moved = len(changes) > 0 and self._has_moved(changes)
        if len(changes):
            self._squares += float(np.sum((changes - np.median(changes)) ** 2)) / 2
            self._freedom += max(len(changes) - 1, 1)
        within = repetition_deviation([times for sizes in measured.values() for times in sizes])
        if within is not None:
            self._within.append(within)
        self._interval = 1 if moved or not self._pools else min(2 * self._interval, LONGEST_INTERVAL)
        self._next = trials + self._interval
        for name, sizes in measured.items():
            before = () if moved else self._pools.get(name, ())
            self._pools[name] = [(*old, *new) for old, new in zip(before, sizes, strict=True)] if before else [*sizes]

    def _changes(self, measured: BaselineTimes) -> Floats:
        changes = [
            _middle(new) - _middle(old)
            for name, sizes in measured.items()
            for old, new in zip(self._pools.get(name, ()), sizes, strict=False)
        ]
        return np.array([change for change in changes if np.isfinite(change)])

    def _has_moved(self, changes: Floats) -> bool:
        """Whether the median of the changes at all sizes is more than their scatter explains."""
        middle = float(np.median(changes))
        scatter = 1.4826 * float(np.median(np.abs(changes - middle)))
        scatter = max(scatter, self.deviation if len(changes) < FEW else 0.0)
        return bool(abs(middle) > max(LEAST_MOVE, MOVE_DEVIATIONS * 1.25 * scatter / len(changes) ** 0.5))


TRIAL_ERROR, MOST_REPEATS = 0.1, 1000
FIRST_CONTROL = 2
"""Repetitions of the first control: the fewest that tell how much repetitions scatter."""


def repetition_deviation(repetitions: Sequence[Times]) -> float | None:
    """Return the standard deviation of logarithms of times within launches, None where nothing was repeated.

    Robust: from medians of distances between neighbouring repetitions.
    """
    steps = [np.abs(np.diff(np.log(np.asarray(times)))) for times in repetitions if len(times) > 1 and min(times) > 0]
    return float(np.median(np.concatenate(steps))) / 0.6745 / 2**0.5 if steps else None


def contender_indices(gains: Floats, deviation: float, most: int, least: int = 2) -> list[int]:
    """Return which of `gains` (logarithms of speed-ups at one size, nan where there is none) may be the best.

    The best first; those further behind than noise of `deviation` in both of two times explains are left out.
    """
    order = [int(index) for index in np.argsort(-np.where(np.isfinite(gains), gains, -np.inf), kind="stable")]
    order = [index for index in order if np.isfinite(gains[index])]
    reach = CONTENDER_DEVIATIONS * 2**0.5 * deviation
    near = [index for index in order if gains[index] >= gains[order[0]] - reach]
    return order[: min(max(len(near), least), most)]


CONTENDER_DEVIATIONS = 2.5


def race_ratio(deviation: float) -> float:
    """Return how many times as slow as the best a program's first repetitions must be for it to leave the race."""
    return float(np.exp(max(RACE_LEAST, RACE_DEVIATIONS * 2**0.5 * deviation)))


RACE_LEAST, RACE_DEVIATIONS = 0.05, 2.0


def _middle(times: Times) -> float:
    usable = [time for time in times if np.isfinite(time) and time > 0]
    return float(np.log(np.median(usable))) if usable else float("nan")
