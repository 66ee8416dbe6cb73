"""An ASGI application on Ray Serve, until somebody stops it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from runners.ray_cluster import RayCluster
from synth.errors import Unavailable

APPLICATION = "chorale"
MOST_REQUESTS_AT_ONCE = 1000
REPLICA_PATIENCE_S = 15.0

_log = logging.getLogger("chorale.serve")


def serve_application(
    build: Callable[[], Any], host: str, port: int, address: str | None, ready: Callable[[], None]
) -> None:
    """Serve what `build` returns, an ASGI application made in the replica, until SIGINT or SIGTERM.

    One replica, which Serve restarts when it dies. The HTTP server listens on `host` on every node of the cluster
    that has one, by default the head only. `ready` is called once requests are answered. Unavailable if the port
    is taken or the cluster does not start.
    """
    with RayCluster(address):
        from ray import serve  # noqa: PLC0415  # a second to import

        try:
            serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "ERROR"})
            serve.run(_deployment(serve, build), name=APPLICATION, route_prefix="/")
        except Exception as error:  # Serve raises many types here; each of them means that it does not serve
            serve.shutdown()  # type: ignore[no-untyped-call]
            way_out = "choose another --port, or look at the log of the cluster"
            raise Unavailable("the service must be able to start", f"{host}:{port}: {error}", way_out) from error
        try:
            ready()
            _wait_for_signal()
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]


def _deployment(serve: Any, build: Callable[[], Any]) -> Any:
    def application() -> Any:  # Serve takes only plain functions for builders
        return build()

    settings = {
        "num_replicas": 1,
        "max_ongoing_requests": MOST_REQUESTS_AT_ONCE,
        "ray_actor_options": {"num_cpus": 0},
        "graceful_shutdown_timeout_s": REPLICA_PATIENCE_S,
    }
    return serve.deployment(**settings)(serve.ingress(application)()).bind()


def _wait_for_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
