"""Probes take the share of a link's time that they may."""

from __future__ import annotations

import pytest

from chorale.tuner.watch.link_monitor import LinkMonitor, MonitorOptions
from chorale.tuner.watch.probe_schedule import ProbeSchedule

_TRAIN_BYTES = 36_000
_SHARE = 0.001


@pytest.mark.parametrize("rate", [25e6, 100e6, 1e9])
@pytest.mark.parametrize("is_suspicious", [False, True])
def test_trains_take_no_more_than_their_share(rate: float, is_suspicious: bool) -> None:
    monitors = {(0, 1): LinkMonitor(rate, MonitorOptions(threshold=1000.0)), (1, 0): LinkMonitor(rate, _OPTIONS)}
    schedule = ProbeSchedule(monitors, 0.25, _SHARE, _TRAIN_BYTES, 0.0)
    if is_suspicious:
        monitors[0, 1].on_ping(0.0, False)
    trains = pings = 0
    seconds = 600
    for tick in range(seconds * 50):
        for link, is_train in schedule.due(tick / 50):
            if link == (0, 1):
                trains += is_train
                pings += not is_train
    assert 0 < trains * _TRAIN_BYTES * 8 / rate <= seconds * _SHARE
    assert pings >= seconds * (9 if is_suspicious else 3.8)


def test_a_suspicious_link_is_probed_again_at_once_with_what_it_has_saved() -> None:
    monitor = LinkMonitor(100e6, MonitorOptions(threshold=1000.0))
    schedule = ProbeSchedule({(0, 1): monitor}, 0.25, _SHARE, _TRAIN_BYTES, 0.0)
    for tick in range(60 * 50):
        list(schedule.due(tick / 50))
    monitor.on_ping(60.0, False)
    schedule.hurry((0, 1), 60.0)
    trains = sum(is_train for tick in range(100) for _, is_train in schedule.due(60 + tick / 50))
    assert trains >= 6


_OPTIONS = MonitorOptions(threshold=1000.0)
