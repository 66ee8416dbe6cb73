"""`chorale serve` for real: an actor, a worker, a restart in the middle of a job."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
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
@pytest.mark.timeout(900)
def test_mixed_jobs_in_one_service_under_load_all_succeed(tmp_path):
    with serving(tmp_path, free_port()) as (client, _), busy(2):
        jobs = ended_jobs(client, 30, 400)
    assert [job for job in jobs if job["state"] != "done"] == []


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


NETWORKS = ("torus:4x{4}", "circulant:{24},3,4", "a100:{2}", "mesh:3x{3}", "h100:{1}", "ring:{9}", "mi250:{2}")
"""Numbers in braces grow from round to round."""
COLLECTIVES = ("allreduce", "allgather", "reduce_scatter")
FINAL = ("done", "failed", "cancelled")


def requests() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield different requests for ever: designs by method, bounds, finds."""
    for number in count():
        for network in NETWORKS:
            topology = re.sub(r"\{(\d+)\}", lambda found, more=number: str(int(found[1]) + more), network)
            for collective in COLLECTIVES:
                for method in ("auto", "forest"):
                    yield "/v1/syntheses", {"topology": topology, "collective": collective, "method": method}
        yield "/v1/bounds", {"topology": f"torus:4x{number + 3}"}
        yield "/v1/finds", {"nodes": 8 + number, "degree": 2}


def burn() -> None:
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(10**6))


@contextmanager
def busy(loops: int) -> Iterator[None]:
    processes = [multiprocessing.Process(target=burn, daemon=True) for _ in range(loops)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def ended_jobs(client: httpx2.Client, wanted: int, limit_s: float) -> list[dict[str, Any]]:
    """Return `wanted` jobs that were asked for four at a time, as they ended; TimeoutError after `limit_s`."""
    ended: list[dict[str, Any]] = []
    running: dict[str, dict[str, Any]] = {}
    deadline_s, source = time.monotonic() + limit_s, requests()
    while len(ended) < wanted:
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{len(ended)} of {wanted} jobs have ended; {list(running.values())}")
        while len(running) < 4 and len(ended) + len(running) < wanted:
            path, body = next(source)
            answer = client.post(path, json=body)
            assert answer.status_code in (200, 202), answer.text
            running[answer.json()["id"]] = body
        time.sleep(0.1)
        for number in list(running):
            job = client.get(f"/v1/jobs/{number}").json()
            if job["state"] in FINAL:
                ended.append({"asked": running.pop(number), **job})
    return ended
