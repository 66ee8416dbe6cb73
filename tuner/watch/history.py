"""The history of links: what a run in MLflow gets of their states, rates and latencies."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from chorale.runners.api.probes import Link
from chorale.synth.errors import Unavailable
from chorale.tuner.tracking.mlflow_values import MetricPoint
from chorale.tuner.watch.link_monitor import LinkState, LinkView
from chorale.tuner.watch.publishing import ReceiverChange

STATE_NUMBERS: Mapping[LinkState, int] = {
    LinkState.HEALTHY: 0,
    LinkState.SLOW: 1,
    LinkState.FLAPPING: 2,
    LinkState.DEAD: 3,
}
"""What stands for a state where only numbers are taken."""
_MOST_POINTS = 100_000
_BATCH = 5000


@dataclass(slots=True)
class LinkHistory:
    """Points that wait until they are logged. One thread adds, another one may deliver.

    log:      takes points, Unavailable if it cannot do so now
    period_s: between two entries of a link whose state does not change
    """

    log: Callable[[Sequence[MetricPoint]], None]
    period_s: float
    _points: deque[MetricPoint] = field(default_factory=lambda: deque(maxlen=_MOST_POINTS))
    _states: dict[Link, LinkState] = field(default_factory=dict)
    _next_s: float = 0.0
    _is_failing: bool = False

    def note(self, views: Mapping[Link, LinkView], now_s: float) -> None:
        """Add all links when it is time, and those whose state is another than before at once."""
        is_due = now_s >= self._next_s
        if is_due:
            self._next_s = now_s + self.period_s
        for link, view in views.items():
            if is_due or self._states.get(link) != view.state:
                self._states[link] = view.state
                self._points.extend(_points(link, view, now_s))

    def deliver(self) -> list[ReceiverChange]:
        """Log what waits; return whether this has begun to fail, or ceased to. The oldest points go when many wait."""
        failure = None
        while self._points and failure is None:
            batch = [self._points.popleft() for _ in range(min(_BATCH, len(self._points)))]
            try:
                self.log(batch)
            except Unavailable as error:
                failure = str(error)
                self._points.extendleft(reversed(batch[: _MOST_POINTS - len(self._points)]))
        if (failure is not None) == self._is_failing:
            return []
        self._is_failing = failure is not None
        return [ReceiverChange("history", failure)]


def _points(link: Link, view: LinkView, now_s: float) -> list[MetricPoint]:
    values = {"state": float(STATE_NUMBERS[view.state]), "lost": float(view.lost)}
    if view.rate is not None:
        values["rate_bits_per_s"] = view.rate.median
    if view.latency is not None:
        values["latency_s"] = view.latency.median
    name = f"link/{link[0]}-{link[1]}"
    return [MetricPoint(f"{name}/{key}", value, int(now_s), int(now_s * 1000)) for key, value in values.items()]
