"""What other campaigns say about the points of a space, believed as far as it predicts what is measured here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chorale.tuner.search.size_model import Floats

MIN_TRIALS = 3
"""Measured points before a prior is believed at all."""

FIRST_STARTS = 2
"""Points that a prior alone decides about; an adversary costs no more than these."""

CAUTION = 1.0
"""Measured points, each as far off as the prior says they vary, that say that it predicts nothing."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Expected gains of points, logarithms of speed-ups at each size of the search; other points are unknown."""

    gains: Mapping[Any, Floats] = field(default_factory=dict)

    def starts(self) -> list[Any]:
        """Return the points to try first: that with the best mean, then those that add most at any size."""
        chosen: list[Any] = []
        reached: Floats | None = None
        for _ in range(min(FIRST_STARTS, len(self.gains))):
            base = reached if reached is not None else np.full(len(next(iter(self.gains.values()))), -np.inf)
            best = max(self.gains, key=lambda one, base=base: float(np.maximum(self.gains[one], base).sum()))  # type: ignore[misc]
            chosen.append(best)
            reached = np.maximum(base, self.gains[best])
        return list(dict.fromkeys(chosen))

    def expected(self, points: Sequence[Any]) -> Floats:
        """Return the gains of `points`, (points, sizes); the mean of all for those that are unknown."""
        mean = np.mean(list(self.gains.values()), axis=0)
        return np.array([self.gains.get(point, mean) for point in points])

    def weight(self, measured: Mapping[Any, Floats]) -> float:
        """Return how far to believe it, 0 to 1: the slope of what was measured over what it expects, drawn to 0."""
        shared = [point for point in measured if point in self.gains and np.all(np.isfinite(measured[point]))]
        if len(shared) < MIN_TRIALS:
            return 0.0
        expected = np.array([self.gains[point] for point in shared])
        values = np.array([measured[point] for point in shared])
        expected, values = expected - expected.mean(axis=0), values - values.mean(axis=0)
        spread = float(np.sum(expected**2))
        doubt = CAUTION * spread / len(shared)
        return float(np.clip(np.sum(expected * values) / (spread + doubt + 1e-12), 0.0, 1.0))
