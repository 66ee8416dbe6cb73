"""An ASGI application on Ray Serve, until somebody stops it."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from typing import Any

from chorale.runners.process_launch.ports import port_lines
from chorale.runners.ray.cluster import RayCluster, ray
from chorale.synth.errors import Unavailable

APPLICATION = "chorale"
MAX_CONCURRENT_REQUESTS = 1000
REPLICA_TIMEOUT_S = 15.0
HEAD_RESOURCE = "node:__internal_head__"
"""Every Ray head has one of it; who takes a little lives there."""
HEAD_RESOURCE_AMOUNT = 0.001

_log = logging.getLogger("chorale.serve")


def serve_application(
    build: Callable[[], Any], host: str, port: int, address: str | None, ready: Callable[[], None]
) -> None:
    """Serve what `build` returns, an ASGI application made in the replica, until SIGINT or SIGTERM.

    One replica, which Serve restarts when it dies. The HTTP server listens on `host` on every node of the cluster
    that has one, by default the head only. `ready` is called once requests are answered; then the log says which ports
    are open to whom. Unavailable if the port is taken or the cluster does not start.
    """
    with RayCluster(address):
        from ray import serve  # noqa: PLC0415  # a second to import

        try:
            serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "ERROR"})
            serve.run(application_of(build), name=APPLICATION, route_prefix="/")
        except Exception as error:  # Serve raises many types here; each of them means that it does not serve
            serve.shutdown()  # type: ignore[no-untyped-call]
            way_out = "choose another --port, or look at the log of the cluster"
            raise Unavailable("the service must be able to start", f"{host}:{port}: {error}", way_out) from error
        try:
            ready()
            _log.info("listening:\n  %s", "\n  ".join(port_lines()))
            _wait_for_signal()
        finally:
            serve.shutdown()  # type: ignore[no-untyped-call]


def application_of(build: Callable[[], Any]) -> Any:
    """Return what Serve runs: one replica that serves what `build` returns.

    It lives on the head, where the folder and the files of the service are.
    """
    from ray import serve  # noqa: PLC0415  # a second to import

    def application() -> Any:  # Serve takes only plain functions for builders
        _listen_on_node_only()
        return build()

    settings: dict[str, Any] = {
        "num_replicas": 1,
        "max_ongoing_requests": MAX_CONCURRENT_REQUESTS,
        "ray_actor_options": {"num_cpus": 0, "resources": {HEAD_RESOURCE: HEAD_RESOURCE_AMOUNT}},
        "graceful_shutdown_timeout_s": REPLICA_TIMEOUT_S,
    }
    return serve.deployment(**settings)(serve.ingress(application)()).bind()


def _listen_on_node_only() -> None:
    """Let the replica, in which this runs, listen on the address of its node; Serve would take all interfaces."""
    from ray.serve._private import replica as module  # noqa: PLC0415  # there is no setting for it

    replica: Any = module
    add_port = replica.add_port_to_grpc_server
    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    address = f"[{node}]:0" if ":" in node else f"{node}:0"
    replica.add_port_to_grpc_server = lambda server, _everywhere: add_port(server, address)


def _wait_for_signal() -> None:
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
