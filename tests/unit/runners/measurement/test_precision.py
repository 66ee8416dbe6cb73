"""What times of repetitions say: intervals and ratios."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from chorale.runners.measurement.driver import median_interval, ratio_interval
from chorale.synth.errors import CheckFailed

MIN_SAMPLES = 6
"""Smallest number of samples whose range encloses the median with 95 % confidence."""


def _coverage(samples: int, low: int, high: int) -> float:
    """Probability that the median lies between the order statistics low and high (from 1): the binomial law."""
    return sum(math.comb(samples, below) for below in range(low, high)) / 2**samples


@given(st.permutations(list(range(1, 41))), st.integers(MIN_SAMPLES, 40))
def test_the_bounds_are_the_narrowest_symmetric_order_statistics_that_cover(order: list[int], samples: int) -> None:
    ranked = sorted(order[:samples])
    interval = median_interval([float(value) for value in order[:samples]])
    low = ranked.index(int(interval.low)) + 1
    high = ranked.index(int(interval.high)) + 1
    assert _coverage(samples, low, high) >= 0.95
    assert _coverage(samples, low + 1, high - 1) < 0.95
    assert interval.median == np.median(ranked)
    assert interval.confidence == 0.95


@pytest.mark.parametrize("samples", range(1, MIN_SAMPLES))
def test_few_samples_give_their_range_and_the_confidence_it_has(samples: int) -> None:
    interval = median_interval([float(value) for value in range(samples)])
    assert (interval.low, interval.high, interval.samples) == (0, samples - 1, samples)
    assert interval.confidence == pytest.approx(_coverage(samples, 1, samples))
    assert interval.confidence < 0.95


def test_what_slows_both_leaves_the_ratio_alone() -> None:
    machine = np.random.default_rng(1).lognormal(sigma=1, size=30)
    interval = ratio_interval((2 * machine).tolist(), machine.tolist())
    assert interval.median == pytest.approx(2)
    assert interval.high == pytest.approx(interval.low)
    with pytest.raises(CheckFailed, match="so nothing can be compared with it"):
        ratio_interval([1.0, 2.0], [1.0, 0.0])
