"""A real MLflow server in a process of its own, for tests that stop it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx2

from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_pages import USER, password_file
from tests.waiting import until


@contextmanager
def server(home: Home, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run `chorale ui`, which is an MLflow server over the default store, until the end of the block."""
    process = start_server(home, port)
    try:
        wait_until_healthy(port, process)
        yield process
    finally:
        kill_group(process)


def address(home: Home, port: int) -> str:
    password = password_file(home).read_text().strip()
    return f"http://{USER}:{password}@127.0.0.1:{port}"


def start_server(home: Home, port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "chorale", "ui", "--port", str(port)]
    environment = {**os.environ, "CHORALE_HOME": str(home.root)}
    with (home.root / "server.log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, env=environment)


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        assert process.poll() is None
        with suppress(httpx2.TransportError):
            return bool(httpx2.get(f"http://127.0.0.1:{port}/health", timeout=2).is_success)
        return False

    until(answers, 60, lambda: "the MLflow server did not become healthy")


def kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
