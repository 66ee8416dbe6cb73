"""Trends over a run: real ones are found, noise is not."""

import numpy as np
import pytest

from chorale.runners.measurement.precision import estimate_drift


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
