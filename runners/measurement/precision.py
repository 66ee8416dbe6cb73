"""Distribution-free confidence intervals for medians of repeated measurements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from chorale.synth.errors import CheckFailed

CONFIDENCE = 0.95


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
