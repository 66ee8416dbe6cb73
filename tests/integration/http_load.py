"""As many requests as a service answers: `python -m tests.integration.http_load --clients 50 --seconds 10`.

Clients hold a connection each and ask for one path again and again, over plain sockets, so that they cost little beside
what they measure. Prints requests a second, the times at the 50th and 99th percentile, and the processor time of the
service and of the clients for a request. Exit 1 for any answer but 200.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx2
import numpy as np
import psutil

from tests.integration.test_service import free_port, serving, token_of

KNOWN = {"topology": "torus:4x4", "method": "bfb", "collective": "allreduce"}
LENGTH = b"content-length: "


async def client(port: int, request: bytes, until_s: float, seconds: list[float]) -> None:
    """Ask until the time is over; AssertionError for another answer than 200."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began_s := time.perf_counter()) < until_s:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        _, _, rest = head.lower().partition(LENGTH)
        await reader.readexactly(int(rest[: rest.index(b"\r")]))
        seconds.append(time.perf_counter() - began_s)
    writer.close()


async def load(port: int, request: bytes, clients: int, seconds: float) -> list[float]:
    """Return how long each request took."""
    times: list[float] = []
    until_s = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, request, until_s, times) for _ in range(clients)))
    return times


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the processor time that `processes` have used."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measured(
    service: psutil.Process, port: int, path: str, token: str, clients: int, seconds: float
) -> dict[str, float]:
    """Return what `clients` clients of `path` saw in `seconds` seconds."""
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    asyncio.run(load(port, request, clients, 1.0))  # warm
    processes = [service, *service.children(recursive=True)]
    before_s, own_s = cpu_s(processes), time.process_time()
    began_s = time.perf_counter()
    times = np.array(asyncio.run(load(port, request, clients, seconds)))
    elapsed_s = time.perf_counter() - began_s
    return {
        "requests": len(times),
        "per_second": round(len(times) / elapsed_s),
        "p50_ms": round(float(np.median(times)) * 1e3, 1),
        "p99_ms": round(float(np.quantile(times, 0.99)) * 1e3, 1),
        "service_cpu_us": round((cpu_s(processes) - before_s) / len(times) * 1e6),
        "clients_cpu_us": round((time.process_time() - own_s) / len(times) * 1e6),
    }


def stored_result(http: httpx2.Client) -> str:
    """Have a schedule made; return the key of its result."""
    job = http.post("/v1/syntheses", json=KNOWN).json()
    while job["result"] is None:
        time.sleep(0.2)
        job = http.get(f"/v1/jobs/{job['id']}").json()
    return str(job["result"])


def main() -> int:
    """Start a service and have clients at its health and at a stored result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10)
    asked = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="chorale-load-") as folder, serving(Path(folder), port) as (http, process):
        paths = {"health": "/healthz", "result": f"/v1/results/{stored_result(http)}"}
        service, token = psutil.Process(process.pid), token_of(Path(folder))
        document = {
            kind: measured(service, port, path, token, asked.clients, asked.seconds) for kind, path in paths.items()
        }
        document["memory"] = {"mb": round(sum(each.memory_info().rss for each in service.children(True)) / 1e6)}
    json.dump(document, sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
