"""Prometheus metrics of the service."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Requests by route and status, their durations, and jobs that wait and run (asked of `counts` when scraped)."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "chorale_requests", "Requests answered.", ("method", "route", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "chorale_request_seconds", "Time to answer.", ("method", "route"), registry=self._registry
        )
        self._registry.register(_Jobs(counts))

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request. `route` is the pattern, not the path, so that there are few of them."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self._registry)


class _Jobs(Collector):
    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        self._counts = counts

    def collect(self) -> Iterator[GaugeMetricFamily]:
        family = GaugeMetricFamily("chorale_jobs", "Unfinished jobs.", labels=["state"])
        for state, count in self._counts().items():
            family.add_metric([state], count)
        yield family
