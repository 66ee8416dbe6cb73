"""`chorale serve` for real: a server, a worker, a restart in the middle of a job."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.waiting import free_port, until

pytestmark = pytest.mark.ray
START_S, END_S = 300.0, 30.0


@contextmanager
def serving(home: Path, port: int) -> Iterator[tuple[httpx2.Client, subprocess.Popen[bytes]]]:
    """Start the command, wait until it answers, and stop it in the end."""
    command = [sys.executable, "-m", "chorale", "serve", "--port", str(port)]
    environment = {**os.environ, "CHORALE_HOME": str(home)}
    with (home / "serve.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            until(lambda: answers(client), START_S, (home / "serve.log").read_text)
            token = (home / "service" / "local-token").read_text().strip()  # which the first start has made
            client.headers["Authorization"] = f"Bearer {token}"
            yield client, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def answers(client: httpx2.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx2.TransportError:
        return False


def state_of(client: httpx2.Client, job: dict[str, Any]) -> str:
    return str(client.get(f"/v1/jobs/{job['id']}").json()["state"])


@pytest.mark.slow
def test_a_job_goes_on_after_the_service_was_killed(tmp_path):
    body = {"topology": "mi250:40", "method": "forest"}
    with serving(tmp_path, free_port()) as (client, process):
        job = client.post("/v1/syntheses", json=body).json()
        until(lambda: state_of(client, job) == "running", 30, (tmp_path / "serve.log").read_text)
        os.killpg(process.pid, signal.SIGKILL)  # nothing of it can say good-bye
        process.wait()
    with serving(tmp_path, free_port()) as (client, _):
        until(lambda: state_of(client, job) not in ("queued", "running"), 90, (tmp_path / "serve.log").read_text)
        job = client.get(f"/v1/jobs/{job['id']}").json()
        assert job["state"] == "done", job
        document = client.get(f"/v1/results/{job['result']}").json()["document"]
        assert document["optimality"]["gap"] == "0"
        again = client.post("/v1/syntheses", json=body)
        assert again.json()["cached"] == "yes"
        assert client.get("/").headers["content-type"].startswith("text/html")
