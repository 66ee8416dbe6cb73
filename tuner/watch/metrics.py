"""Prometheus metrics of a watch, on a port of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from chorale.runners.api.probes import Link
from chorale.synth.errors import Unavailable
from chorale.synth.extras import missing_extra
from chorale.tuner.watch.history import STATE_NUMBERS
from chorale.tuner.watch.records import WatchRecords

if TYPE_CHECKING:
    from prometheus_client import Metric

_LABELS = ["fabric", "link"]


def serve_metrics(records: WatchRecords, name: str, port: int) -> Callable[[], None]:
    """Serve what `records` shows at http://127.0.0.1:`port`/metrics; return what ends it.

    Unavailable where the port is taken, or the library is not there.
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - only where it is asked for
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    registry = CollectorRegistry()
    registry.register(_WatchCollector(records, name))
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        rule, way_out = "the port of the metrics must be free", "choose another `metrics_port`"
        raise Unavailable(rule, f"{port}: {error.strerror}", way_out) from error

    def end() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return end


class _WatchCollector:
    """Makes the families of metrics anew at every scrape."""

    def __init__(self, records: WatchRecords, name: str) -> None:
        self._records, self._name = records, name

    def collect(self) -> Iterator[Metric]:
        """Yield all families, see prometheus_client's Collector."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # noqa: PLC0415 - as above

        views = dict(self._records.views)
        numbers = ", ".join(f"{number} {state.value}" for state, number in STATE_NUMBERS.items())
        gauges: dict[str, tuple[str, dict[Link, float]]] = {
            "state": (f"State: {numbers}.", {link: STATE_NUMBERS[view.state] for link, view in views.items()}),
            "rate_bits_per_second": (
                "Median rate of the latest probes.",
                {link: view.rate.median for link, view in views.items() if view.rate is not None},
            ),
            "in_force_bits_per_second": (
                "Rate that plans count on.",
                {link: view.in_force_bits_per_s for link, view in views.items()},
            ),
            "carried_bits_per_second": (
                "Rate at which the link carries bytes of all kinds.",
                dict(self._records.carried_bits_per_s),
            ),
            "latency_seconds": (
                "Median latency of the latest probes.",
                {link: view.latency.median for link, view in views.items() if view.latency is not None},
            ),
        }
        for key, (words, values) in gauges.items():
            family = GaugeMetricFamily(f"chorale_link_{key}", words, labels=_LABELS)
            for (src, dst), value in values.items():
                family.add_metric([self._name, f"{src}>{dst}"], float(value))
            yield family
        for key, words in (("probes", "Small packets sent."), ("lost", "Small packets lost.")):
            counters = CounterMetricFamily(f"chorale_link_{key}", words, labels=_LABELS)
            for (src, dst), view in views.items():
                counters.add_metric([self._name, f"{src}>{dst}"], getattr(view, key))
            yield counters
        events = CounterMetricFamily("chorale_watch_events", "What happened.", labels=["fabric", "event"])
        for kind, count in dict(self._records.counts).items():
            events.add_metric([self._name, kind], count)
        yield events
        waiting = GaugeMetricFamily("chorale_watch_waiting", "Not heard of yet.", labels=["fabric", "receiver"])
        for receiver, count in dict(self._records.waiting).items():
            waiting.add_metric([self._name, receiver], count)
        yield waiting
