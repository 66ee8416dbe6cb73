"""The HTTP server: it answers, says why it cannot, and ends what it serves."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from typing import Any

import httpx2
import psutil
import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chorale.runners.ray import http_connections, serve as http_server
from chorale.runners.ray.serve import serve_application
from chorale.synth.errors import Unavailable
from tests.serving import served
from tests.waiting import free_port, until


class Application:
    """An ASGI application that answers with the address of its client."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.lives: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        body = scope["client"][0].encode() if scope["path"] == "/" else bytes(2**23)
        await send({"type": "http.response.body", "body": body})

    async def _live(self, receive: Any, send: Any) -> None:
        self.lives.append((await receive())["type"])
        await send({"type": f"lifespan.startup.{'failed' if self.fails else 'complete'}"})
        if not self.fails:
            self.lives.append((await receive())["type"])
            await send({"type": "lifespan.shutdown.complete"})


def test_it_answers_until_it_is_stopped_and_believes_no_proxy():
    application = Application()
    with served(application) as url:
        answer = httpx2.get(url, headers={"X-Forwarded-For": "10.1.2.3"})
        assert answer.text == "127.0.0.1"
        assert "server" not in answer.headers
    assert application.lives == ["lifespan.startup", "lifespan.shutdown"]
    with pytest.raises(httpx2.TransportError):
        httpx2.get(url)


def _cannot_be_built() -> Application:
    raise OSError("the disk is full")


def test_a_port_that_is_taken_and_an_application_that_does_not_start_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "RayCluster", lambda address: nullcontext())
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Unavailable, match="Address already in use"):
        serve_application(Application, "127.0.0.1", taken.getsockname()[1], None, lambda: None)
    for build in (_cannot_be_built, partial(Application, fails=True)):
        with pytest.raises(Unavailable, match="could not start"):
            serve_application(build, "127.0.0.1", free_port(), None, lambda: None)


def test_more_connections_than_it_takes_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 2)
    with served(Application()) as url, httpx2.Client(base_url=url) as first:
        assert first.get("/").status_code == 200
        with socket.create_connection(("127.0.0.1", httpx2.URL(url).port or 0)):
            until(lambda: first.get("/").status_code == 503)  # once the server has seen the other connection


HEAD = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server with small bounds; its application sends 8 MB if the path is not `/`."""
    monkeypatch.setattr(http_connections, "MAX_IDLE_OF_ADDRESS", 20)
    monkeypatch.setattr(http_connections, "ARRIVAL_LIMIT_S", 0.5)
    monkeypatch.setattr(http_connections, "REFUSED_S", 0.2)
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 40)
    with served(Application()) as url:
        yield httpx2.URL(url).port or 0


@pytest.fixture
def connected(port: int) -> Iterator[Callable[..., list[socket.socket]]]:
    with ExitStack() as stack:

        def connect(content: bytes, count: int = 1) -> list[socket.socket]:
            address = ("127.0.0.1", port)
            held = [stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(count)]
            for connection in held:
                with suppress(ConnectionError):  # closed by the server for a newer one
                    connection.sendall(content)
            return held

        yield connect


def ended(connection: socket.socket) -> bool:
    """Read until the server closes the connection; TimeoutError if it does not."""
    with suppress(ConnectionResetError):
        while connection.recv(2**20):
            continue
    return True


@pytest.mark.parametrize("content", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n12", HEAD + b"\r\n" + HEAD, b"\r\n"])
def test_connections_that_ask_for_nothing_keep_nobody_out_and_end(port, connected, content):
    held = connected(content, 60)
    assert httpx2.get(f"http://127.0.0.1:{port}/").status_code == 200
    assert all(ended(connection) for connection in held)


def test_answers_that_nobody_takes_in_keep_nobody_out_and_end(port, connected):
    held = connected(HEAD.replace(b"/ ", b"/much ") + b"\r\n", 60)
    assert httpx2.get(f"http://127.0.0.1:{port}/").status_code == 200
    own = psutil.Process()
    until(lambda: ("ESTABLISHED", port) not in {(one.status, one.laddr.port) for one in own.net_connections("tcp")})
    assert len(held) == 60


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "endless"),
    [(b"", b"a: b\r\n"), (b"", b"a"), (b"", b"a: " + b"b" * 1000 + b"\r\n"), (CHUNKED, b"1\r\na\r\n")],
)
def test_a_request_without_end_is_refused_and_read_no_further(connected, begin, endless):
    (connection,) = connected(HEAD + begin)
    connection.setblocking(False)
    sent, deadline_s = 0, time.monotonic() + 10
    with suppress(ConnectionError):
        while time.monotonic() < deadline_s:
            try:
                sent += connection.send(endless * 500)
            except BlockingIOError:
                time.sleep(0.01)
    assert time.monotonic() < deadline_s
    assert sent < 2**24  # buffers of the system; without a bound it is as much as fits into ten seconds


@pytest.mark.parametrize("path", [b"/ ", b"/much "])
def test_a_body_of_tiny_parts_is_refused_and_read_no_further(connected, path, monkeypatch: pytest.MonkeyPatch):
    parts: list[bytes] = []
    monkeypatch.setattr(HttpToolsProtocol, "on_body", lambda _, body: parts.append(body))
    chunked = HEAD.replace(b"/ ", path, 1) + b"Transfer-Encoding: chunked\r\n\r\n"
    (connection,) = connected(chunked + b"1\r\na\r\n" * 100_000)
    assert ended(connection)
    assert len(parts) <= http_connections.MAX_SMALL_PARTS
