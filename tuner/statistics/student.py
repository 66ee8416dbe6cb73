"""Quantiles of Student's t: the same numbers as SciPy's `stdtrit`, without half a second to import it."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log, log1p

_PRECISE = 1e-17
_NEAR = 0.1


@lru_cache(maxsize=4096)
def student_quantile(error: float, freedom: float) -> float:
    """Return what Student's t of `freedom` degrees exceeds with probability `error`, between 0 and a half.

    Infinite where there is no freedom. By bisection of the tail, which is half an incomplete beta function.
    """
    if freedom <= 0:
        return inf
    if error >= 0.5:
        return 0.0
    low, high = 0.0, 1.0
    while _tail(high, freedom) > error:
        low, high = high, 2 * high
    while high - low > 1e-15 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _tail(middle, freedom) > error else (low, middle)
    return (low + high) / 2


def _tail(quantile: float, freedom: float) -> float:
    """Return the probability of more than `quantile`, which is at least 0: half of an incomplete beta function."""
    square = quantile * quantile
    if square < freedom:
        middle = 0.5 - _incomplete_beta(square / (freedom + square), 0.5, freedom / 2) / 2
        if middle > _NEAR:  # a small difference of two numbers close to a half would have few digits
            return middle
    return _incomplete_beta(freedom / (freedom + square), freedom / 2, 0.5) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """Return the regularized incomplete beta function by its series, of which all terms are positive.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.5.4. O(1 / (1 - x)).
    """
    if x <= 0:
        return 0.0
    term = total = 1.0
    count = 0
    while term > _PRECISE * total:
        term *= x * (a + b + count) / (a + 1 + count)
        total += term
        count += 1
    return exp(lgamma(a + b) - lgamma(a + 1) - lgamma(b) + a * log(x) + b * log1p(-x)) * total
