"""Many clients at once on a real service: `python -m tests.integration.service_load --clients 200 --seconds 60`.

Each client asks in turn for health, its jobs, a known result, a synthesis that is known, a new synthesis. Prints one
JSON document: requests, answers by status, p50 and p99 by kind. Exit 1 for any answer but 200, 202 and 429.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

import httpx2
import numpy as np

from tests.integration.test_service import free_port, serving, token_of

ALLOWED = (200, 202, 429)
KNOWN = {"topology": "torus:4x4", "method": "bfb", "collective": "allreduce"}


class Client:
    """One client: asks, waits a little, asks again."""

    def __init__(self, url: str, token: str, seed: int, result: str) -> None:
        self._random = random.Random(seed)  # not for secrets
        self._http = httpx2.AsyncClient(base_url=url, timeout=60, headers={"Authorization": f"Bearer {token}"})
        self._result = result
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.statuses: Counter[int] = Counter()

    async def work(self, until_s: float) -> None:
        """Send requests until the time is over."""
        async with self._http:
            while time.monotonic() < until_s:
                kind = self._random.choices(("health", "jobs", "result", "known", "new"), (2, 2, 4, 3, 1))[0]
                started_s = time.perf_counter()
                answer = await self._ask(kind)
                self.seconds[kind].append(time.perf_counter() - started_s)
                self.statuses[answer.status_code] += 1
                await asyncio.sleep(self._random.uniform(0.2, 1.0))

    async def _ask(self, kind: str) -> httpx2.Response:
        if kind == "health":
            return await self._http.get("/healthz")
        if kind == "jobs":
            return await self._http.get("/v1/jobs", params={"limit": 10})
        if kind == "result":
            return await self._http.get(f"/v1/results/{self._result}")
        new = {
            "topology": f"circulant:{self._random.randrange(20, 60)},1,{self._random.randrange(2, 9)}",
            "method": "bfb",
        }
        return await self._http.post("/v1/syntheses", json=KNOWN if kind == "known" else new)


async def load(url: str, token: str, clients: int, seconds: float, seed: int, result: str) -> dict[str, object]:
    """Return what `clients` clients saw in `seconds` seconds."""
    crowd = [Client(url, token, seed + number, result) for number in range(clients)]
    until_s = time.monotonic() + seconds
    await asyncio.gather(*(client.work(until_s) for client in crowd))
    statuses = sum((client.statuses for client in crowd), Counter())
    kinds = {kind for client in crowd for kind in client.seconds}
    times = {kind: np.array([t for client in crowd for t in client.seconds[kind]]) for kind in kinds}
    return {
        "clients": clients,
        "seconds": seconds,
        "requests": sum(statuses.values()),
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "milliseconds": {
            kind: {"p50": round(float(np.median(t)) * 1e3, 1), "p99": round(float(np.quantile(t, 0.99)) * 1e3, 1)}
            for kind, t in sorted(times.items())
        },
    }


def main() -> int:
    """Start a service, have clients at it, print what they saw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="chorale-load-") as folder,
        serving(Path(folder), port) as (client, _),
    ):
        job = client.post("/v1/syntheses", json=KNOWN).json()
        while job["result"] is None:
            time.sleep(0.2)
            job = client.get(f"/v1/jobs/{job['id']}").json()
        url, token = f"http://127.0.0.1:{port}", token_of(Path(folder))
        found = asyncio.run(load(url, token, asked.clients, asked.seconds, asked.seed, job["result"]))
    json.dump(found, sys.stdout, indent=2)
    return 0 if all(int(status) in ALLOWED for status in found["statuses"]) else 1  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
