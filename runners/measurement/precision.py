"""Distribution-free confidence intervals for medians, drift and outliers of repeated measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from chorale.runners.api.base import Measurement
from chorale.synth.errors import CheckFailed

CONFIDENCE = 0.95
MIN_SAMPLES = 6
"""Smallest number of samples whose extremes enclose the median with 95 % confidence: 1 - 2 / 2^6 is above 0.95."""


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A sample median, and bounds that enclose the true median with probability `confidence` or more."""

    median: float
    low: float
    high: float
    confidence: float
    samples: int


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> MedianInterval:
    """Return the median's exact binomial confidence interval, which lies between two order statistics. O(n log n).

    With too few samples for `confidence`, it is their complete range, and its confidence is 1 - 2 / 2^n.

    samples: positive and independent, at least one, with any distribution
    """
    median, count = float(np.median(samples)), len(samples)
    reachable = 1 - 2.0 ** (1 - count)
    if reachable < confidence:
        return MedianInterval(median, min(samples), max(samples), reachable, count)
    below, ordered = samples_below(count, confidence), sorted(samples)
    return MedianInterval(median, float(ordered[below]), float(ordered[-1 - below]), confidence, count)


@lru_cache(maxsize=256)
def samples_below(count: int, confidence: float) -> int:
    """Return how many of `count` sorted samples may lie outside the interval of their median at each end.

    The result is the largest k such that a fair coin shows at most k heads in `count` throws with a probability below
    (1 - `confidence`) / 2, or 0 if there is none (Conover, Practical Nonparametric Statistics, 1999, 3.2). Computed
    with integers.
    """
    limit = Fraction((1 - confidence) / 2) * 2**count
    throws, heads = 1, 0  # ways to have at most `heads` heads
    while throws < limit:
        heads += 1
        throws += math.comb(count, heads)
    return max(heads - 1, 0)  # the complete range has exactly this confidence


def ratio_interval(
    times_s: Sequence[float], reference_s: Sequence[float], confidence: float = CONFIDENCE
) -> MedianInterval:
    """Return the confidence interval of the median ratio time / reference time.

    The n-th times of both were measured next to each other, so a load on the machine slows both and hardly changes
    their ratio. Raises CheckFailed if a reference time is 0.
    """
    if min(reference_s) <= 0:
        rule = "the reference took {}, so nothing can be compared with it"
        raise CheckFailed(rule, f"{min(reference_s)} s", "choose another reference")
    ratios = [time / reference for time, reference in zip(times_s, reference_s, strict=True)]
    return median_interval(ratios, confidence)


SIGNIFICANCE = 0.05
TOLERATED_CHANGE = 0.05
"""The relative change over a run below which a trend is not worth a warning."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Trend of a program's times over a run's repetitions.

    relative_change: change from the first to the last repetition, relative to the median time, computed from the
                     median of all pairwise slopes (Theil and Sen), which is robust against outliers
    p_value:         probability of an order at least this regular without a trend (Kendall's tau); 1 if there are fewer
                     than three times or all are equal
    """

    relative_change: float
    p_value: float

    @property
    def is_flagged(self) -> bool:
        """Return whether the change is significant and larger than tolerated."""
        return abs(self.relative_change) > TOLERATED_CHANGE and self.p_value < SIGNIFICANCE


def estimate_drift(times_s: Sequence[float]) -> Drift:
    """Return the trend of `times_s`, which are in the order in which they were measured. O(n^2)."""
    if len(times_s) < 3 or min(times_s) == max(times_s):
        return Drift(0.0, 1.0)
    from scipy.stats import kendalltau, theilslopes  # noqa: PLC0415 - slow to import and only needed here

    order = np.arange(len(times_s))
    change = theilslopes(times_s, order).slope * order[-1] / np.median(times_s)
    return Drift(float(change), float(kendalltau(order, times_s).pvalue))


FENCE = 3.0
"""Times beyond this many interquartile ranges outside the quartiles are outliers (Tukey, Exploratory Data Analysis,
1977, section 2D: `far out` values)."""


def find_outliers(times_s: Sequence[float]) -> tuple[int, ...]:
    """Return the indices (from 0) of repetitions whose times are far from the others."""
    first, third = np.percentile(times_s, [25, 75])
    reach = FENCE * (third - first)
    return tuple(n for n, time in enumerate(times_s) if not first - reach <= time <= third + reach)


@dataclass(frozen=True, slots=True)
class SizeAnalysis:
    """Analysis of the times at one size.

    times:    interval of the median time, in seconds
    ratio:    interval of the ratio time / reference time, repetition by repetition; None without a reference
    outliers: indices of repetitions with times far from the others; they count like the others
    drift:    trend of the reference over the run, or of the program itself if there is no reference
    """

    times: MedianInterval
    ratio: MedianInterval | None
    outliers: tuple[int, ...]
    drift: Drift

    def to_json(self, reference: str | None) -> dict[str, Any]:
        """Return plain JSON values. reference: the reference's name in the output"""
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
            interval = {name: getattr(self.ratio, name) for name in ("median", "low", "high", "confidence")}
            facts["ratio_to_reference"] = {"reference": reference, **interval}
        return facts


def analyse(measurement: Measurement, name: str, reference: str | None = None) -> tuple[SizeAnalysis, ...]:
    """Analyse the result `name` of `measurement` at each size, in the request's order.

    reference: name of the result with which to compare

    Raises CheckFailed if a reference time is 0.
    """
    found, others = [], measurement.results[name if reference is None else reference]
    for own, other in zip(measurement.results[name], others, strict=True):
        ratio = None if reference is None else ratio_interval(own.times_s, other.times_s)
        times = median_interval(own.times_s)
        found.append(SizeAnalysis(times, ratio, find_outliers(own.times_s), estimate_drift(other.times_s)))
    return tuple(found)
