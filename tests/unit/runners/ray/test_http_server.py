"""The server of an actor, in this process: it answers, says why it cannot, and ends what it serves."""

from __future__ import annotations

import socket
import time
from typing import Any

import httpx2
import pytest

from chorale.runners.ray import serve as http_server
from chorale.runners.ray.serve import HttpServer


class Application:
    """An ASGI application that answers with the address of its client."""

    def __init__(self, fails: bool = False, message: str = "") -> None:
        self.fails = fails
        self.message = message
        self.lives: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": scope["client"][0].encode()})

    async def _live(self, receive: Any, send: Any) -> None:
        self.lives.append((await receive())["type"])
        failed = {"type": "lifespan.startup.failed", "message": self.message}
        await send(failed if self.fails else {"type": "lifespan.startup.complete"})
        if not self.fails:
            self.lives.append((await receive())["type"])
            await send({"type": "lifespan.shutdown.complete"})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_answers_until_it_is_stopped_and_believes_no_proxy():
    application, port = Application(), free_port()
    server = HttpServer(lambda: application, "127.0.0.1", port)
    assert server.problem() == ""
    answer = httpx2.get(f"http://127.0.0.1:{port}/", headers={"X-Forwarded-For": "10.1.2.3"})
    assert answer.text == "127.0.0.1"
    assert "server" not in answer.headers
    server.stop()
    assert application.lives == ["lifespan.startup", "lifespan.shutdown"]
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"http://127.0.0.1:{port}/")


def test_it_says_that_the_port_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = HttpServer(Application, "127.0.0.1", taken.getsockname()[1])
        assert "Address already in use" in server.problem()


def test_it_says_that_the_application_did_not_start():
    server = HttpServer(lambda: Application(fails=True), "127.0.0.1", free_port())
    assert server.problem() == "the application did not start"


def test_it_says_why_the_application_did_not_start():
    traceback = "Traceback (most recent call last):\n  ...\nOSError: the disk is full\n"
    server = HttpServer(lambda: Application(fails=True, message=traceback), "127.0.0.1", free_port())
    assert server.problem() == "the application did not start: OSError: the disk is full"


def test_more_connections_than_it_takes_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    port = free_port()
    server = HttpServer(Application, "127.0.0.1", port)
    assert server.problem() == ""
    with httpx2.Client(base_url=f"http://127.0.0.1:{port}") as first:
        assert first.get("/").status_code == 200
        with socket.create_connection(("127.0.0.1", port)):
            deadline_s = time.monotonic() + 10
            while (code := first.get("/").status_code) == 200 and time.monotonic() < deadline_s:
                time.sleep(0.02)  # until the server has seen the other connection
            assert code == 503
    server.stop()
