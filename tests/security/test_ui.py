"""`chorale ui` is for who has the password of the data folder, and ends as a whole."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import httpx2
import pytest

from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_pages import USER, password_file
from tests.integration.mlflow_server import server
from tests.security.open_ports import open_ports
from tests.waiting import free_port

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Pages:
    process: Popen[bytes]
    port: int
    password: str

    def status(self, path: str, body: bytes | None = None, password: str | None = None, **headers: str) -> int:
        sent = headers if body is None else {"Content-Type": "application/json", **headers}
        address, login = f"http://127.0.0.1:{self.port}{path}", None if password is None else (USER, password)
        method = "GET" if body is None else "POST"
        return int(httpx2.request(method, address, content=body, headers=sent, auth=login, timeout=60).status_code)


@contextmanager
def pages(home: Home) -> Iterator[Pages]:
    port = free_port()
    with server(home, port) as process:
        yield Pages(process, port, password_file(home).read_text().strip())


def test_the_pages_need_the_password_and_end_with_their_process(home: Home) -> None:
    with pages(home) as ui:
        create, search = "/api/2.0/mlflow/experiments/create", "/api/2.0/mlflow/experiments/search?max_results=1"
        assert [ui.status(path) for path in ("/", search, "/ajax-api/2.0/mlflow/users")] == [401] * 3
        assert ui.status(create, b'{"name": "planted"}') == 401
        assert ui.status("/api/2.0/mlflow-artifacts/artifacts/planted.txt", b"planted") == 401
        assert ui.status(search, password="wrong") == 401
        assert ui.status(search, password=ui.password) == 200
        assert ui.status("/health") == 200
        assert status_of_endless_head(ui.port) == b"HTTP/1.1 400"
        foreign = {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
        assert ui.status(create, b'{"name": "planted"}', password=ui.password, **foreign) == 403
        assert ui.status(create, b'{"name": "mine"}', password=ui.password) == 200
        assert password_file(home).stat().st_mode & 0o777 == 0o600
        assert open_ports(ui.process.pid) == {ui.port: True}
        assert b"sqlite" not in Path(f"/proc/{ui.process.pid}/cmdline").read_bytes()
        group = ui.process.pid
        ui.process.send_signal(signal.SIGTERM)
        ui.process.wait(timeout=60)
        with pytest.raises(ProcessLookupError):
            os.killpg(group, 0)  # nobody is left of it


def status_of_endless_head(port: int) -> bytes:
    """Return the status of a request whose head goes on and on, without a password."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"A: b\r\n" * 200)
        return connection.recv(12)
