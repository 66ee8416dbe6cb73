"""Drift: whether the machine became slower or faster while it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SIGNIFICANCE = 0.05
TOLERATED_CHANGE = 0.05
"""The relative change over a run below which a trend is not worth a warning."""


@dataclass(frozen=True, slots=True)
class Drift:
    """The trend of the times of one program over the repetitions of a run.

    relative_change: from the first repetition to the last, as a share of the median: the median of all pairwise slopes
                     (Theil and Sen), which outliers do not bend
    p_value:         how probable such an order of the times is without any trend (Kendall's tau); 1 where fewer than
                     three times or equal times say nothing
    """

    relative_change: float
    p_value: float

    @property
    def is_flagged(self) -> bool:
        """Whether the change is larger than tolerated and not chance."""
        return abs(self.relative_change) > TOLERATED_CHANGE and self.p_value < SIGNIFICANCE


def estimate_drift(times_s: Sequence[float]) -> Drift:
    """Return the trend of `times_s`, which are in the order in which they were measured. O(n^2)."""
    if len(times_s) < 3 or min(times_s) == max(times_s):
        return Drift(0.0, 1.0)
    from scipy.stats import kendalltau, theilslopes  # noqa: PLC0415 - slow to import: only who measures pays for it

    order = np.arange(len(times_s))
    change = theilslopes(times_s, order).slope * order[-1] / np.median(times_s)
    return Drift(float(change), float(kendalltau(order, times_s).pvalue))
