"""What times of repetitions say: intervals, ratios, drift, outliers."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chorale.runners.api.base import Measurement, SizeMeasurement
from chorale.runners.measurement.precision import (
    MIN_SAMPLES,
    analyse,
    estimate_drift,
    find_outliers,
    median_interval,
    ratio_interval,
)
from chorale.synth.errors import CheckFailed


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


def test_nineteen_of_twenty_intervals_enclose_the_true_median() -> None:
    random = np.random.default_rng(0)
    found = [median_interval(random.lognormal(sigma=2, size=15).tolist()) for _ in range(1000)]
    assert sum(one.low <= 1 <= one.high for one in found) >= 950


def test_a_wild_time_moves_nothing() -> None:
    calm = median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8])
    assert median_interval([1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1e9]) == calm


def test_what_slows_both_leaves_the_ratio_alone() -> None:
    machine = np.random.default_rng(1).lognormal(sigma=1, size=30)
    interval = ratio_interval((2 * machine).tolist(), machine.tolist())
    assert interval.median == pytest.approx(2)
    assert interval.high == pytest.approx(interval.low)


def test_a_reference_without_time_is_refused() -> None:
    with pytest.raises(CheckFailed, match="so nothing can be compared with it"):
        ratio_interval([1.0, 2.0], [1.0, 0.0])


@pytest.mark.parametrize("change", [-0.3, 0.2, 1.0])
def test_a_trend_in_noise_is_measured_and_flagged(change: float) -> None:
    random = np.random.default_rng(3)
    times = (1 + change * np.linspace(-0.5, 0.5, 40)) * random.normal(1, 0.02, 40)
    found = estimate_drift(times.tolist())
    assert found.relative_change == pytest.approx(change, abs=0.06)
    assert found.is_flagged


def test_wild_times_do_not_bend_the_trend() -> None:
    times = np.linspace(1.0, 1.2, 30)
    times[[3, 17]] = 50.0
    assert estimate_drift(times.tolist()).relative_change == pytest.approx(0.2 / 1.1, rel=0.05)


def test_noise_is_rarely_flagged() -> None:
    random = np.random.default_rng(4)
    flagged = [estimate_drift(random.normal(1, 0.1, 20).tolist()).is_flagged for _ in range(200)]
    assert sum(flagged) <= 0.08 * len(flagged)


def test_a_small_trend_is_measured_and_not_flagged() -> None:
    found = estimate_drift(np.linspace(1.0, 1.04, 50).tolist())
    assert found.relative_change == pytest.approx(0.04 / 1.02)
    assert found.p_value < 0.001
    assert not found.is_flagged


@pytest.mark.parametrize("times", [[1.0], [1.0, 2.0], [3.0] * 10])
def test_too_few_or_equal_times_say_nothing(times: list[float]) -> None:
    found = estimate_drift(times)
    assert (found.relative_change, found.p_value) == (0.0, 1.0)


def test_a_time_far_outside_is_named_by_its_repetition() -> None:
    assert find_outliers([1.0, 1.1, 9.0, 1.2, 1.3, 1.1, 0.001]) == (2, 6)


def test_equal_times_have_none_and_any_other_is_one() -> None:
    assert find_outliers([1.0] * 8) == ()
    assert find_outliers([1.0] * 8 + [1.001]) == (8,)


OWN = (2.0, 2.2, 2.4, 2.6, 2.8, 30.0)
REFERENCE = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
MEASUREMENT = Measurement(
    "drawn",
    {
        "own": (SizeMeasurement(4096, 4096, OWN, correct=True), SizeMeasurement(8192, 8192, OWN[:2], correct=True)),
        "library:x": (
            SizeMeasurement(4096, 4096, REFERENCE, correct=True),
            SizeMeasurement(8192, 8192, REFERENCE[:2], correct=True),
        ),
    },
)


def test_a_ratio_is_taken_repetition_by_repetition() -> None:
    large, small = analyse(MEASUREMENT, "own", "library:x")
    assert large.ratio is not None
    assert (large.ratio.median, large.ratio.low, large.ratio.high) == pytest.approx((2, 2, 20))
    assert large.ratio.confidence == 0.95
    assert small.ratio is not None
    assert small.ratio.confidence == 0.5


def test_json_names_the_reference_and_every_repetition_that_is_out_of_line() -> None:
    (found, _) = analyse(MEASUREMENT, "own", "library:x")
    assert found.to_json("library:x") == {
        "time_us_interval": [2e6, 30e6],
        "confidence": 0.95,
        "outliers": [5],
        "drift": {"relative_change": pytest.approx(0.5 / 1.25), "p_value": pytest.approx(2 / 720), "flagged": True},
        "ratio_to_reference": {
            "reference": "library:x",
            "median": pytest.approx(2),
            "low": pytest.approx(2),
            "high": pytest.approx(20),
            "confidence": 0.95,
        },
    }


def test_without_a_reference_there_is_no_ratio_and_the_drift_is_its_own() -> None:
    (found, _) = analyse(MEASUREMENT, "own")
    assert found.ratio is None
    assert "ratio_to_reference" not in found.to_json(None)
    assert found.drift.relative_change == pytest.approx(0.2 * 5 / 2.5, rel=0.5)
