"""When a probe is taken for lost."""

from __future__ import annotations

import time

from chorale.runners.fabric.link_probe import Lateness, LinkProber, _Probe, sent_bytes

_MS = 1_000_000


def test_the_longest_of_late_is_remembered_for_ten_seconds() -> None:
    lateness = Lateness()
    now_ns = 0
    for pause_ms in (50, 1, 350, 50, 150, 20):
        lateness.turn(now_ns)
        now_ns += pause_ms * _MS
    lateness.turn(now_ns)
    assert lateness.longest_ns == 300 * _MS
    for _ in range(200):
        now_ns += 50 * _MS
        lateness.turn(now_ns)
    assert lateness.longest_ns == 0


def test_a_probe_is_lost_later_where_the_prober_waits_for_a_core() -> None:
    prober = LinkProber({"namespaces": [], "links": [], "payload_bytes": 100, "limit_s": 1.0})
    prober._arrived_ns = [0]
    sent_ns = time.time_ns() - 1200 * _MS
    prober._under_way[0] = _Probe(0, 1, sent_ns)
    prober.lateness.turn(0)
    prober.lateness.turn(150 * _MS)  # late by 100
    assert list(prober.overdue()) == []
    prober._under_way[0].sent_ns -= 300 * _MS
    assert [outcome["arrived"] for outcome in prober.overdue()] == [False]


def test_bytes_that_devices_have_sent() -> None:
    text = (
        "Inter-|   Receive                                                |  Transmit\n"
        " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop\n"
        "    lo:     100       1    0    0    0     0          0         0      100       1    0    0\n"
        "to-1: 987654 12 0 0 0 0 0 0 123456789 34 0 0\n"
    )
    assert sent_bytes(text) == {"lo": 100, "to-1": 123456789}
