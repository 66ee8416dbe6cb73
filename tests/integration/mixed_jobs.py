"""Many different jobs in one service under load: `python -m tests.integration.mixed_jobs --jobs 200`.

Two busy loops run beside the service. Prints how the jobs ended; exit 1 if one of them has failed.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx2

from tests.integration.test_service import free_port, serving

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
    """Take a processor for as long as the process that wanted it lives."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(10**6))


@contextmanager
def busy(loops: int) -> Iterator[None]:
    """Run busy loops beside the block."""
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


def main() -> int:
    """Start a service and two busy loops, and have it work."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=1800)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chorale-jobs-") as folder:
        began_s = time.monotonic()
        with serving(Path(folder), free_port()) as (client, _), busy(2):
            jobs = ended_jobs(client, asked.jobs, asked.seconds)
    failed = [job for job in jobs if job["state"] != "done"]
    states = dict(Counter(job["state"] for job in jobs))
    document = {
        "jobs": states,
        "seconds": round(time.monotonic() - began_s),
        "load": os.getloadavg()[0],
        "failed": failed,
    }
    json.dump(document, sys.stdout, indent=2)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
