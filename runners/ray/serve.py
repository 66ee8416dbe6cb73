"""Serves an ASGI application over HTTP while this process is connected to a Ray cluster."""

import socket
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from chorale.runners.ray.cluster import RayCluster
from chorale.runners.ray.http_connections import BoundedHttp, IdleConnections
from chorale.synth.errors import ChoraleError, Unavailable

MAX_CONNECTIONS = 1000
BACKLOG = 2048
STOP_LIMIT_S = 15


class HttpServer(uvicorn.Server):
    """Serves `application`; `run` returns after SIGINT or SIGTERM.

    With more than `MAX_CONNECTIONS` connections, requests are answered with 503. Idle connections have separate limits;
    see `http_connections`. A client's address is the address of its connection; proxy headers are ignored.

    ready: function that is called when requests can be answered
    """

    def __init__(self, application: Any, ready: Callable[[], None] = lambda: None) -> None:
        self._stopping = getattr(getattr(application, "state", None), "stopping", None)
        self._ready = ready
        config = uvicorn.Config(
            application,
            http=partial(BoundedHttp, idle=IdleConnections()),  # type: ignore[arg-type]  # it is called as a class
            ws="none",
            lifespan="on",
            access_log=False,
            log_level="error",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=STOP_LIMIT_S,
            backlog=BACKLOG,
        )
        super().__init__(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Make `run` answer the requests that have arrived, and then stop the application, within about `STOP_LIMIT_S`.

        This sets the application's event `state.stopping`, if it exists, so that the application ends its streams.
        """
        if self._stopping is not None:
            self._stopping.set()
        self.force_exit = self.should_exit  # true at the second signal
        self.should_exit = True


def serve_application(
    build: Callable[[], Any], host: str, port: int, address: str | None, ready: Callable[[], None]
) -> None:
    """Serve the application that `build` returns, until SIGINT or SIGTERM. It uses the cluster at `address`.

    `ready` is called when requests can be answered. Raises Unavailable if the port is taken, or if the cluster or the
    application does not start.
    """
    where = f"{host}:{port}"
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Unavailable("the service cannot listen at {}", f"{where}: {error}", "choose another --port") from error
    with listening, RayCluster(address):
        try:
            HttpServer(build(), ready).run(sockets=[listening])
        except ChoraleError:
            raise
        except (Exception, SystemExit) as error:  # uvicorn exits if the application does not start
            raise Unavailable(
                "the service could not start at {}", f"{where}: {error}", "see the lines above"
            ) from error
