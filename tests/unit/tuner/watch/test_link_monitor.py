"""States of one link by its probes."""

from __future__ import annotations

import random

import pytest

from chorale.tuner.watch.link_monitor import LinkMonitor, LinkState, MonitorOptions, StateChange

_RATE = 1e8
_OPTIONS = MonitorOptions(threshold=18.0)


def _monitor() -> LinkMonitor:
    return LinkMonitor(_RATE, _OPTIONS)


class _Clock:
    """Probes one link: pings four times a second, a rate after every eighth ping."""

    def __init__(self, monitor: LinkMonitor, seed: int = 0) -> None:
        self.monitor, self.draw = monitor, random.Random(seed)
        self.now_s, self.count = 0.0, 0

    def run(self, seconds: float, rate: float | None, loss: float = 0.0) -> list[StateChange]:
        changes: list[StateChange | None] = []
        for _ in range(int(seconds * 4)):
            self.now_s += 0.25
            self.count += 1
            changes.append(self.monitor.on_ping(self.now_s, rate is not None and self.draw.random() >= loss))
            if rate is not None and self.count % 8 == 0:
                changes.append(self.monitor.on_rate(self.now_s, rate * self.draw.uniform(0.95, 1.02)))
        return [change for change in changes if change is not None]


def test_a_healthy_link_stays_so_though_some_packets_are_lost() -> None:
    clock = _Clock(_monitor())
    assert clock.run(24 * 3600, _RATE, loss=0.002) == []
    assert clock.monitor.state == LinkState.HEALTHY
    assert clock.monitor.rate_bits_per_s == _RATE


def test_a_cut_link_is_dead_within_two_seconds_and_healthy_again_after_it_is_back() -> None:
    clock = _Clock(_monitor())
    clock.run(60, _RATE)
    cut_s = clock.now_s
    (dead,) = clock.run(10, None)
    assert (dead.before, dead.after, dead.rate) == (LinkState.HEALTHY, LinkState.DEAD, None)
    assert dead.time_s - cut_s <= 2.0
    assert cut_s < dead.since_s <= cut_s + 0.25
    assert clock.monitor.rate_bits_per_s == 0
    (back,) = clock.run(10, _RATE)
    assert (back.before, back.after) == (LinkState.DEAD, LinkState.HEALTHY)


def test_a_slow_link_has_a_rate_and_an_interval() -> None:
    clock = _Clock(_monitor())
    clock.run(60, _RATE)
    (slow,) = clock.run(60, _RATE / 10)
    assert slow.after == LinkState.SLOW
    assert slow.rate is not None
    assert slow.rate.low <= slow.rate.median <= slow.rate.high
    assert slow.rate.median == pytest.approx(_RATE / 10, rel=0.06)
    assert clock.monitor.rate_bits_per_s == slow.rate.median
    (slower,) = clock.run(60, _RATE / 40)
    assert (slower.before, slower.after) == (LinkState.SLOW, LinkState.SLOW)
    (healthy,) = clock.run(60, _RATE)
    assert healthy.after == LinkState.HEALTHY
    assert clock.monitor.rate_bits_per_s == _RATE


def test_a_link_that_comes_and_goes_is_flapping_until_it_is_quiet() -> None:
    clock = _Clock(_monitor())
    changes = [change for _ in range(3) for rate in (None, _RATE) for change in clock.run(5, rate)]
    assert [change.after for change in changes] == [
        *(LinkState.DEAD, LinkState.HEALTHY, LinkState.DEAD, LinkState.FLAPPING)
    ]
    assert clock.monitor.rate_bits_per_s == 0
    (calm,) = clock.run(60, _RATE)
    assert (calm.before, calm.after) == (LinkState.FLAPPING, LinkState.HEALTHY)
    assert clock.run(60, _RATE) == []


@pytest.mark.parametrize("seed", range(5))
def test_noise_of_rates_below_the_assumption_raises_no_alarm(seed: int) -> None:
    """One probe in twenty is as slow as a broken link's, day after day."""
    monitor, draw = _monitor(), random.Random(seed)
    for second in range(20_000):
        rate = _RATE * (0.3 if draw.random() < 0.04 else 1.0)
        assert monitor.on_rate(float(second), rate) is None
