"""Where jobs' times and predictions part."""

from __future__ import annotations

import random

import pytest

from chorale.tuner.watch.departures import departures
from chorale.tuner.watch.job_times import CallTimes, Key

_KEY: Key = ("digest", "allreduce", 1024)


def _times(count: int, mean_s: float, seed: int = 0) -> CallTimes:
    draw = random.Random(seed)
    times = [mean_s * draw.gauss(1, 0.1) for _ in range(count)]
    return CallTimes(count, sum(times), sum(each**2 for each in times))


@pytest.mark.parametrize(("mean_s", "parts"), [(1.0, False), (1.2, False), (2.0, True), (0.5, True), (0.85, False)])
def test_a_mean_that_is_beyond_doubt_outside_parts(mean_s: float, parts: bool) -> None:
    rows = departures({}, {_KEY: _times(100, mean_s)}, 0.25, lambda _key: 1.0)
    assert bool(rows) == parts
    assert all(row.ratio == pytest.approx(mean_s, rel=0.05) for row in rows)


def test_few_calls_earlier_calls_and_other_programs_do_not_count() -> None:
    now = {_KEY: _times(100, 2.0)}
    assert departures({}, {_KEY: _times(9, 2.0)}, 0.25, lambda _key: 1.0) == []
    assert departures(now, now, 0.25, lambda _key: 1.0) == []
    assert departures({}, now, 0.25, lambda _key: None) == []


def test_noise_around_the_prediction_raises_nothing() -> None:
    """Means at the very bound of what is tolerated: one in ten thousand at most may part."""
    rows = [departures({}, {_KEY: _times(20, 1.25, seed)}, 0.25, lambda _key: 1.0) for seed in range(300)]
    assert not any(rows)


def test_the_costliest_comes_first() -> None:
    other: Key = ("digest", "allreduce", 2048)
    rows = departures({}, {_KEY: _times(20, 2.0), other: _times(200, 2.0)}, 0.25, lambda _key: 1.0)
    assert [row.size_bytes for row in rows] == [2048, 1024]
