"""Statistics of measured times: median intervals, ratios to a reference, outliers and drift.

Outliers are reported, never dropped: medians and intervals between order statistics tolerate a few of them, and a run
that looks good only without them should be seen to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from chorale.runners.api.base import Measurement, SizeMeasurement
from chorale.runners.measurement.precision import (
    CONFIDENCE,
    MedianInterval,
    launch_medians,
    median_interval,
    ratio_interval,
)

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


FENCE = 3.0
"""Times beyond this many interquartile ranges outside the quartiles are outliers (Tukey, Exploratory Data Analysis,
1977, section 2D: `far out` values)."""


def find_outliers(times_s: Sequence[float]) -> tuple[int, ...]:
    """Return the repetitions, counted from 0, whose times are far out of line with the others."""
    first, third = np.percentile(times_s, [25, 75])
    reach = FENCE * (third - first)
    return tuple(n for n, time in enumerate(times_s) if not first - reach <= time <= third + reach)


@dataclass(frozen=True, slots=True)
class SizeAnalysis:
    """times:    interval of the median time, in seconds
    ratio:    interval of the time over the reference's, repetition by repetition; None without a reference
    outliers: repetitions far out of line; they are among those that count
    drift:    trend of the reference over the run, of the program itself without one
    """

    times: MedianInterval
    ratio: MedianInterval | None
    outliers: tuple[int, ...]
    drift: Drift

    def to_json(self, reference: str | None) -> dict[str, Any]:
        """Return the facts as JSON has them; `reference` is the name that people know it by."""
        facts: dict[str, Any] = {
            "time_us_interval": [self.times.low * 1e6, self.times.high * 1e6],
            "confidence": self.times.confidence,
            "outliers": list(self.outliers),
            "drift": {
                "relative_change": self.drift.relative_change,
                "p_value": self.drift.p_value,
                "flagged": self.drift.is_flagged,
            },
        }
        if self.ratio is not None:
            facts["ratio_to_reference"] = {
                "reference": reference,
                "median": self.ratio.median,
                "low": self.ratio.low,
                "high": self.ratio.high,
                "confidence": self.ratio.confidence,
            }
        return facts


def analyse(
    measurement: Measurement,
    name: str,
    reference: str | None = None,
    confidence: float = CONFIDENCE,
    per_launch: int = 1,
) -> tuple[SizeAnalysis, ...]:
    """Return what `measurement` says about the result `name` at each size, in the order of the request.

    `reference` is the name of the result that it is compared with. CheckFailed where a reference takes no time.
    per_launch: repetitions of each launch where these count once.
    """
    own = measurement.results[name]
    if reference is None:
        return tuple(_of_size(one, None, confidence, per_launch) for one in own)
    pairs = zip(own, measurement.results[reference], strict=True)
    return tuple(_of_size(one, other, confidence, per_launch) for one, other in pairs)


def _of_size(
    own: SizeMeasurement, reference: SizeMeasurement | None, confidence: float, per_launch: int
) -> SizeAnalysis:
    ratio = None if reference is None else ratio_interval(own.times_s, reference.times_s, confidence, per_launch)
    times = median_interval(launch_medians(own.times_s, per_launch), confidence)
    trend = estimate_drift(own.times_s if reference is None else reference.times_s)
    return SizeAnalysis(times, ratio, find_outliers(own.times_s), trend)
