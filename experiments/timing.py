"""Times of our own code, and how they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import linear_regression

import numpy as np


def min_seconds(action: Callable[[], object], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the least of several times: others that use the machine only ever add.

    clock: `time.process_time` for what runs in this process only, which others then hardly disturb
    """
    least = float("inf")
    for _ in range(repeats):
        begun = clock()
        action()
        least = min(least, clock() - begun)
    return least


def growth_exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """Return the power of the size with which times grow: the slope of the line through their logarithms."""
    return float(linear_regression(np.log(sizes), np.log(seconds)).slope)
