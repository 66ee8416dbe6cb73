"""The state of one link, by what probes of it show."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from chorale.runners.measurement.precision import MIN_SAMPLES, MedianInterval, median_interval
from chorale.tuner.watch.evidence import Evidence, Hypotheses


class LinkState(StrEnum):
    """healthy: at its rate; slow: at a lower one; dead: nothing arrives; flapping: it changes too often to be used."""

    HEALTHY = "healthy"
    SLOW = "slow"
    FLAPPING = "flapping"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """threshold:  of evidence, see `threshold_for`
    slow_below: the part of a rate below which a probe counts as slower
    flaps:      so many changes within `flap_window_s` are too many
    quiet_s:    without a change end it
    """

    threshold: float
    slow_below: float = 0.85
    flaps: int = 4
    flap_window_s: float = 60.0
    quiet_s: float = 30.0


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of a link's state.

    since_s: when the first probe showed it
    rate:    the median in bit/s with its interval; None where too few probes arrived since
    """

    time_s: float
    since_s: float
    before: LinkState
    after: LinkState
    rate: MedianInterval | None


@dataclass(frozen=True, slots=True)
class LinkView:
    """What is known of a link at a moment.

    in_force_bits_per_s: what plans count on; 0 for a link that is dead or flapping
    rate, latency:       of the latest probes, in bit/s and seconds, with intervals; None for too few
    probes, lost:        small packets since the watch began
    """

    state: LinkState
    since_s: float
    declared_bits_per_s: float
    in_force_bits_per_s: float
    rate: MedianInterval | None
    latency: MedianInterval | None
    probes: int
    lost: int


_LOST = Hypotheses(before=0.01, after=0.9)
_SLOWER = Hypotheses(before=0.05, after=0.9)
_FASTER = Hypotheses(before=0.05, after=0.9)
_ALIVE = Hypotheses(before=0.01, after=0.9)
TESTS_PER_PING, TESTS_PER_RATE = 1, 2
"""How many tests weigh a probe."""

_RECENT = 64


class LinkMonitor:
    """Watches one link that should carry `declared_bits_per_s`. Probes come in the order of their time."""

    def __init__(self, declared_bits_per_s: float, options: MonitorOptions, start_s: float = 0.0) -> None:
        self.declared_bits_per_s = declared_bits_per_s
        self._options = options
        self._since_s = start_s
        self._pings, self._losses = 0, 0
        self._latencies: deque[float] = deque(maxlen=_RECENT)
        self._steady = LinkState.HEALTHY
        self._is_flapping = False
        self._reference = declared_bits_per_s
        self._lost, self._alive = self._evidence(_LOST), self._evidence(_ALIVE)
        self._slower, self._faster = self._evidence(_SLOWER), self._evidence(_FASTER)
        self._rates: deque[float] = deque(maxlen=_RECENT)
        self._changes: deque[float] = deque()
        self._first_sign_s: dict[int, float] = {}

    @property
    def state(self) -> LinkState:
        """What the link is now."""
        return LinkState.FLAPPING if self._is_flapping else self._steady

    @property
    def rate_bits_per_s(self) -> float:
        """What plans may count on: the rate in force, 0 for a link that is dead or flapping."""
        is_usable = self.state in (LinkState.HEALTHY, LinkState.SLOW)
        return self._reference if is_usable else 0.0

    @property
    def is_suspicious(self) -> bool:
        """Whether more probes should decide soon."""
        return any(test.is_suspicious for test in (self._lost, self._alive, self._slower, self._faster))

    @property
    def estimate(self) -> MedianInterval | None:
        """The rate by the latest probes, None where too few arrived since the last change."""
        return _estimate(self._rates)

    def view(self) -> LinkView:
        """Return what is known of the link now."""
        return LinkView(
            self.state,
            self._since_s,
            self.declared_bits_per_s,
            self.rate_bits_per_s,
            self.estimate,
            _estimate(self._latencies),
            self._pings,
            self._losses,
        )

    def saved(self) -> dict[str, Any]:
        """Return, as plain data, what another monitor of the link needs to go on."""
        changes = list(self._changes)
        steady = self._steady.value
        return {"steady": steady, "flapping": self._is_flapping, "in_force": self._reference, "changes": changes}

    def resume(self, saved: dict[str, Any], since_s: float) -> None:
        """Go on as the monitor of which this was saved; since_s: when its state began."""
        self._steady, self._is_flapping = LinkState(saved["steady"]), bool(saved["flapping"])
        self._reference = float(saved["in_force"])
        self._changes = deque(map(float, saved["changes"]))
        self._since_s = since_s

    def on_ping(
        self, time_s: float, has_arrived: bool, latency_s: float | None = None, *, elsewhere: float = 0.0
    ) -> StateChange | None:
        """Weigh a small packet that was sent at `time_s`; return the change that it decides.

        elsewhere: the part of such packets that unrelated links lose at the moment
        """
        self._pings, self._losses = self._pings + 1, self._losses + (not has_arrived)
        if latency_s is not None and latency_s > 0:
            self._latencies.append(latency_s)
        if self._steady == LinkState.DEAD:
            if self._weigh(self._alive, has_arrived, time_s):
                return self._change(LinkState.HEALTHY, time_s, self._alive)
        elif self._weigh(self._lost, not has_arrived, time_s, elsewhere):
            return self._change(LinkState.DEAD, time_s, self._lost)
        return self._after_quiet(time_s)

    def is_below(self, rate_bits_per_s: float) -> bool:
        """Return whether a rate is one that the link should not have."""
        return rate_bits_per_s < self._options.slow_below * self._reference

    def on_rate(self, time_s: float, rate_bits_per_s: float, *, elsewhere: float = 0.0) -> StateChange | None:
        """Weigh the rate of a train of packets; return the change that it decides.

        elsewhere: the part of trains that are too slow on unrelated links at the moment
        """
        if self._steady == LinkState.DEAD:
            return None
        self._rates.append(rate_bits_per_s)
        below, above = self._options.slow_below, 1 / self._options.slow_below
        is_slower = self._weigh(self._slower, self.is_below(rate_bits_per_s), time_s, elsewhere)
        is_faster = self._weigh(self._faster, rate_bits_per_s > above * self._reference, time_s)
        test = self._slower if is_slower else self._faster
        if not (is_slower or (is_faster and self._steady == LinkState.SLOW)) or test.probes < MIN_SAMPLES:
            return None
        latest = list(self._rates)[-test.probes :]
        self._rates = deque(latest, maxlen=_RECENT)
        estimate = _estimate(latest)
        assert estimate is not None
        is_healthy = estimate.median >= below * self.declared_bits_per_s
        self._reference = self.declared_bits_per_s if is_healthy else estimate.median
        return self._change(LinkState.HEALTHY if is_healthy else LinkState.SLOW, time_s, test)

    def _evidence(self, hypotheses: Hypotheses) -> Evidence:
        return Evidence(hypotheses, self._options.threshold)

    def _weigh(self, test: Evidence, has_symptom: bool, time_s: float, elsewhere: float = 0.0) -> bool:
        if not test.is_suspicious:
            self._first_sign_s[id(test)] = time_s
        return test.add(has_symptom, elsewhere)

    def _change(self, after: LinkState, time_s: float, test: Evidence) -> StateChange | None:
        """Return what others see of a change of the steady state: nothing while the link flaps."""
        before, since_s = self.state, self._first_sign_s[id(test)]
        self._steady = after
        for each in (self._lost, self._alive, self._slower, self._faster):
            each.clear()
        if after == LinkState.HEALTHY:
            self._reference = self.declared_bits_per_s
        if LinkState.DEAD in {before, after}:
            self._rates.clear()
        self._count_change(time_s)
        if self.state != before:
            self._since_s = time_s
        is_news = self.state != before or (after == LinkState.SLOW and not self._is_flapping)
        return StateChange(time_s, since_s, before, self.state, self.estimate) if is_news else None

    def _count_change(self, time_s: float) -> None:
        self._changes.append(time_s)
        while self._changes[0] < time_s - self._options.flap_window_s:
            self._changes.popleft()
        self._is_flapping = self._is_flapping or len(self._changes) >= self._options.flaps

    def _after_quiet(self, time_s: float) -> StateChange | None:
        if not self._is_flapping or time_s < self._changes[-1] + self._options.quiet_s or self.is_suspicious:
            return None
        since_s = self._changes[-1]
        self._is_flapping = False
        self._since_s = time_s
        self._changes.clear()
        return StateChange(time_s, since_s, LinkState.FLAPPING, self._steady, self.estimate)


def _estimate(rates: Sequence[float] | deque[float]) -> MedianInterval | None:
    """Return the median and its interval, None for too few rates; the time of samples is no matter to it."""
    return median_interval(sorted(rates)) if len(rates) >= MIN_SAMPLES else None
