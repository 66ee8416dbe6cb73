"""An ASGI application in a cluster: in an actor that listens itself, until somebody stops it, or on Ray Serve."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from chorale.runners.process_launch.ports import port_lines
from chorale.runners.ray.cluster import RayCluster, ray
from chorale.runners.ray.http_server import START_LIMIT_S, STOP_LIMIT_S, HttpServer
from chorale.synth.errors import Unavailable

MAX_CONCURRENT_REQUESTS = 1000
REPLICA_TIMEOUT_S = 15.0
HEAD_RESOURCE = "node:__internal_head__"
"""Every Ray head has one of it; who takes a little lives there."""
HEAD_RESOURCE_AMOUNT = 0.001
ON_HEAD: Mapping[str, Any] = {"num_cpus": 0, "resources": {HEAD_RESOURCE: HEAD_RESOURCE_AMOUNT}}
START_TIMEOUT_S, STOP_TIMEOUT_S = START_LIMIT_S + 30.0, STOP_LIMIT_S + 5.0

_log = logging.getLogger("chorale.serve")


def serve_application(
    build: Callable[[], Any], host: str, port: int, address: str | None, ready: Callable[[], None]
) -> None:
    """Serve what `build` returns, an ASGI application made in an actor on the head, until SIGINT or SIGTERM.

    The actor listens on `host` of the head itself; Ray makes it again when its process dies. `ready` is called once
    requests are answered; then the log says which ports are open to whom. Unavailable if the port is taken or the
    cluster does not start.
    """
    with RayCluster(address):
        server = _start_server(build, host, port)
        try:
            ready()
            _log.info("listening:\n  %s", "\n  ".join(port_lines()))
            _wait_for_signal()
        finally:
            _stop_server(server)


def _start_server(build: Callable[[], Any], host: str, port: int) -> Any:
    actor: Any = ray.remote(HttpServer)
    actor = actor.options(max_restarts=-1, max_task_retries=-1, max_concurrency=2, **ON_HEAD)
    server = actor.remote(build, host, port)
    try:
        problem = str(ray.get(server.problem.remote(), timeout=START_TIMEOUT_S))
    except Exception as error:  # Ray raises many types here; each of them means that it does not serve
        problem = str(error)
    if problem:
        ray.kill(server)
        way_out = "choose another --port, or look at the log of the cluster"
        raise Unavailable("the service must be able to start", f"{host}:{port}: {problem}", way_out)
    return server


def _stop_server(server: Any) -> None:
    with suppress(Exception):  # the cluster may be gone by then
        ray.get(server.stop.remote(), timeout=STOP_TIMEOUT_S)
    with suppress(Exception):
        ray.kill(server)


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
        "ray_actor_options": dict(ON_HEAD),
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
