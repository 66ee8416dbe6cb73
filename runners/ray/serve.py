"""Serves an ASGI application in a Ray cluster, from an actor with an HTTP server."""

import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from chorale.runners.ray.cluster import RayCluster, ray
from chorale.synth.errors import Unavailable

MAX_CONNECTIONS = 1000
BACKLOG = 2048
START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
POLL_S = 0.02
NOT_STARTED = "the application did not start"


class HttpServer:
    """Serves the application that `build` returns, on `host` and `port`. The constructor starts it. Runs as an actor.

    With more than `MAX_CONNECTIONS` connections, requests are answered with 503. Idle connections have separate limits,
    see `http_connections`. A client's address is the address of its connection; proxy headers are ignored.
    """

    def __init__(self, build: Callable[[], Any], host: str, port: int) -> None:
        import uvicorn  # noqa: PLC0415 - only in the actor

        from chorale.runners.ray.http_connections import BoundedHttp, IdleConnections  # noqa: PLC0415 - as above

        self._problem = self._reason = ""
        self._application = build()
        config = uvicorn.Config(
            self._listened_to(self._application),
            http=partial(BoundedHttp, idle=IdleConnections()),  # type: ignore[arg-type]  # it is called as a class
            ws="none",
            lifespan="on",
            access_log=False,
            log_level="error",
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=int(STOP_LIMIT_S),
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(host, port), name="chorale-http", daemon=True)
        self._thread.start()

    def problem(self) -> str:
        """Wait at most `START_LIMIT_S` for the start to end; return why it failed, or "" if it succeeded."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return "" if self._server.started else self._problem or NOT_STARTED

    def stop(self) -> None:
        """Answer the requests that have arrived and end the application. Takes at most about `STOP_LIMIT_S`.

        This sets the event `state.stopping` of the application, if it has one, so that it ends its streams.
        """
        stopping = getattr(getattr(self._application, "state", None), "stopping", None)
        if stopping is not None:
            stopping.set()
        self._server.should_exit = True
        self._thread.join(STOP_LIMIT_S + 1)

    def _listened_to(self, application: Any) -> Any:
        """Wrap `application` to record why its start failed, because uvicorn only logs the reason."""

        async def listening(scope: Any, receive: Any, send: Any) -> None:
            async def noting(message: Any) -> None:
                if message["type"] == "lifespan.startup.failed":  # keep the last line of a traceback
                    self._reason = message.get("message", "").strip().rpartition("\n")[2]
                await send(message)

            await application(scope, receive, noting if scope["type"] == "lifespan" else send)

        return listening

    def _run(self, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host, port), family=family, backlog=BACKLOG) as listening:
                self._server.run(sockets=[listening])
        except SystemExit:  # uvicorn raises this if the application does not start
            self._problem = ": ".join(filter(None, (NOT_STARTED, self._reason)))
        except Exception as error:  # kept for `problem`, because nobody sees a thread's errors
            self._problem = f"{type(error).__name__}: {error}"


HEAD_RESOURCE = "node:__internal_head__"
"""Resource of which only Ray's head has a unit. An actor that needs a little of it runs on the head."""
HEAD_RESOURCE_AMOUNT = 0.001
ON_HEAD: Mapping[str, Any] = {"num_cpus": 0, "resources": {HEAD_RESOURCE: HEAD_RESOURCE_AMOUNT}}
START_TIMEOUT_S, STOP_TIMEOUT_S = START_LIMIT_S + 30.0, STOP_LIMIT_S + 5.0


def serve_application(
    build: Callable[[], Any], host: str, port: int, address: str | None, ready: Callable[[], None]
) -> None:
    """Serve the ASGI application that `build` returns until SIGINT or SIGTERM, in an actor on the head.

    The actor itself listens on `host` on the head; Ray restarts it if its process dies. `ready` is called when requests
    can be answered. Raises Unavailable if the port is taken or the cluster does not start.
    """
    with RayCluster(address):
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
            raise Unavailable("the service could not start at {}", f"{host}:{port}: {problem}", way_out)
        try:
            ready()
            stopped = threading.Event()
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: stopped.set())
            stopped.wait()
        finally:
            with suppress(Exception):  # the cluster may be gone by then
                ray.get(server.stop.remote(), timeout=STOP_TIMEOUT_S)
            with suppress(Exception):
                ray.kill(server)
