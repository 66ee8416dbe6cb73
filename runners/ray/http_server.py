"""An HTTP server inside an actor: uvicorn serves an ASGI application in a thread, without proxies between."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

MAX_CONNECTIONS = 1000
BACKLOG = 2048
START_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0
POLL_S = 0.02
NOT_STARTED = "the application did not start"


class HttpServer:
    """Listens on `host` and `port` and serves what `build` returns, from when it is made; an actor's class.

    Above `MAX_CONNECTIONS` at once requests are answered with 503. Addresses of clients are those of connections:
    headers of proxies are not believed.
    """

    def __init__(self, build: Callable[[], Any], host: str, port: int) -> None:
        import uvicorn  # noqa: PLC0415 - only in the actor

        self._problem = self._reason = ""
        self._application = build()
        config = uvicorn.Config(
            self._listened_to(self._application),
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
        """Return why requests are not answered, "" where they are, once that is decided; within `START_LIMIT_S`."""
        deadline_s = time.monotonic() + START_LIMIT_S
        while not self._server.started and self._thread.is_alive() and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        return "" if self._server.started else self._problem or NOT_STARTED

    def stop(self) -> None:
        """Answer the requests that have come, end the application, and return, after about `STOP_LIMIT_S` at most.

        An application with `state.stopping`, an event, is told by it to end its streams.
        """
        stopping = getattr(getattr(self._application, "state", None), "stopping", None)
        if stopping is not None:
            stopping.set()
        self._server.should_exit = True
        self._thread.join(STOP_LIMIT_S + 1)

    def _listened_to(self, application: Any) -> Any:
        """Return `application`, whose reason for not starting is noted; uvicorn only logs it."""

        async def listening(scope: Any, receive: Any, send: Any) -> None:
            async def noting(message: Any) -> None:
                if message["type"] == "lifespan.startup.failed":
                    self._reason = message.get("message", "").strip().rpartition("\n")[2]  # of a traceback, its end
                await send(message)

            await application(scope, receive, noting if scope["type"] == "lifespan" else send)

        return listening

    def _run(self, host: str, port: int) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.create_server((host, port), family=family, backlog=BACKLOG) as listening:
                self._server.run(sockets=[listening])
        except SystemExit:  # uvicorn's way to say that the application did not start
            self._problem = ": ".join(filter(None, (NOT_STARTED, self._reason)))
        except Exception as error:  # told to who asks: nobody else hears what ends a thread
            self._problem = f"{type(error).__name__}: {error}"
