"""When to probe which link: often enough to notice, seldom enough to disturb nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chorale.runners.api.probes import Link
from chorale.tuner.watch.link_monitor import LinkMonitor

_SAVED_TRAINS = 10
"""How many trains a link may save up, for the time when it is suspicious."""
_SUSPICIOUS_S = 0.25
"""Between two trains on a suspicious link, as long as it has saved some."""
_SUSPICIOUS_PING_S = 0.1


@dataclass(slots=True)
class _LinkTimes:
    next_ping_s: float
    next_train_s: float
    saved_s: float = 0.0
    updated_s: float = 0.0


class ProbeSchedule:
    """Says which probes are due. Trains of a link take at most `share` of its time, pings hardly any."""

    def __init__(
        self, monitors: Mapping[Link, LinkMonitor], ping_s: float, share: float, train_bytes: int, start_s: float
    ) -> None:
        self._monitors, self._ping_s, self._share = monitors, ping_s, share
        self._train_bits = train_bytes * 8
        count = len(monitors)
        # Links take turns, so that probes do not come in bursts.
        self._times = {
            link: _LinkTimes(start_s + ping_s * index / count, start_s + self.period_s(link) * index / count)
            for index, link in enumerate(monitors)
        }
        for times in self._times.values():
            times.updated_s = start_s

    def period_s(self, link: Link) -> float:
        """Return the seconds between two trains on a link while nothing is suspicious: half of what it may take."""
        return 2 * self._train_s(link) / self._share

    def probes_per_s(self) -> tuple[float, float]:
        """Return how many pings and how many trains all links have in a second."""
        return len(self._times) / self._ping_s, sum(1 / self.period_s(link) for link in self._times)

    def due(self, now_s: float) -> Iterator[tuple[Link, bool]]:
        """Yield (link, whether a train) of what is to be sent now."""
        for link, times in self._times.items():
            monitor = self._monitors[link]
            if now_s >= times.next_ping_s:
                times.next_ping_s = now_s + (_SUSPICIOUS_PING_S if monitor.is_suspicious else self._ping_s)
                yield link, False
            if now_s >= times.next_train_s and self._take(link, times, now_s):
                times.next_train_s = now_s + (_SUSPICIOUS_S if monitor.is_suspicious else self.period_s(link))
                yield link, True

    def hurry(self, link: Link, now_s: float) -> None:
        """Probe a link again soon, since it has become suspicious."""
        times = self._times[link]
        times.next_ping_s = min(times.next_ping_s, now_s + _SUSPICIOUS_PING_S)
        times.next_train_s = min(times.next_train_s, now_s + _SUSPICIOUS_S)

    def _train_s(self, link: Link) -> float:
        return self._train_bits / self._monitors[link].declared_bits_per_s

    def _take(self, link: Link, times: _LinkTimes, now_s: float) -> bool:
        """Take the time of a train from what the link has saved; False if that is not enough."""
        need_s = self._train_s(link)
        saved_s = times.saved_s + (now_s - times.updated_s) * self._share
        times.saved_s, times.updated_s = min(saved_s, _SAVED_TRAINS * need_s), now_s
        if times.saved_s < need_s:
            return False
        times.saved_s -= need_s
        return True
