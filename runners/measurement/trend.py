"""Trends in a series: the slope of Theil and Sen, and how probable an order is by chance, by Kendall's tau.

The same numbers as SciPy's `theilslopes` and `kendalltau`, without the second that its statistics take to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import erfc, factorial, sqrt

import numpy as np
from numpy.typing import NDArray

MAX_EXACT = 33
"""Values, all different, up to which orders are counted; beyond, the normal distribution is as good."""


def median_slope(values: Sequence[float]) -> float:
    """Return the median of the slopes of all pairs, per place in the series. At least two values. O(n^2).

    Source: P. K. Sen, Estimates of the Regression Coefficient Based on Kendall's Tau, 1968, equation 3.3.
    """
    series = np.asarray(values, dtype=np.float64)
    first, second = np.triu_indices(len(series), 1)
    return float(np.median((series[second] - series[first]) / (second - first)))


def probability_of_order(values: Sequence[float]) -> float:
    """Return how probable a Kendall's tau of this size or more, of either sign, is where there is no trend. O(n^2).

    At least two values that are not all equal. Exact where up to `MAX_EXACT` values differ from each other, and where
    at most one pair is out of order; else by the normal distribution, corrected for equal values.
    Source: M. G. Kendall, Rank Correlation Methods, 4th edition, chapters 4 and 5.
    """
    series = np.asarray(values, dtype=np.float64)
    count = len(series)
    signs = np.sign(series[:, None] - series[None, :])[np.tril_indices(count, -1)]
    falling, rising = int((signs < 0).sum()), int((signs > 0).sum())
    fewer = min(falling, rising)
    if falling + rising == len(signs) and (count <= MAX_EXACT or fewer <= 1):
        return float(min(Fraction(1), 2 * Fraction(_orders_with(count, fewer), factorial(count))))
    _, equal = np.unique(series, return_counts=True)
    variance = (_spread(np.array([count])) - _spread(equal)) / 18
    return erfc(abs(rising - falling) / sqrt(2 * variance))


def _spread(counts: NDArray[np.intp]) -> float:
    return float((counts * (counts - 1) * (2 * counts + 5)).sum())


def _orders_with(count: int, most_inversions: int) -> int:
    """Return how many orders of `count` values have at most so many pairs out of order. O(count * inversions)."""
    numbers = [1] + [0] * most_inversions
    for value in range(2, count + 1):
        sums = [0]
        for number in numbers:
            sums.append(sums[-1] + number)
        numbers = [sums[n + 1] - sums[max(0, n + 1 - value)] for n in range(len(numbers))]
    return sum(numbers)
