"""What Ray Serve's own proxy answers under `/-/`, and to whom."""

import asyncio
from typing import Any

import pytest

from chorale.runners.ray.proxy_guard import ProxyGuard, guards
from tests.integration.test_service import serving
from tests.waiting import free_port


def status_of(path: str, host: str, server: str = "127.0.0.1") -> int:
    """Return the status for a request that arrives at the address `server`."""
    sent: list[dict[str, Any]] = []

    async def proxy(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"host", host.encode())], "server": (server, 8600)}
    asyncio.run(ProxyGuard(proxy)(scope, None, send))
    return int(sent[0]["status"])


@pytest.mark.parametrize(
    ("path", "host", "server", "status"),
    [
        ("/-/routes", "127.0.0.1:8600", "127.0.0.1", 404),
        ("/-/routes", "chorale.example", "10.0.0.1", 404),
        ("/-/healthz", "evil.example", "127.0.0.1", 421),
        ("/-/healthz", "evil.example:8600", "::1", 421),
        ("/-/healthz", "localhost:8600", "127.0.0.1", 200),
        ("/-/healthz", "[::1]:8600", "::1", 200),
        ("/-/healthz", "10.0.0.1:8600", "10.0.0.1", 200),
        ("/v1/jobs", "evil.example", "127.0.0.1", 200),  # the service checks that itself
    ],
)
def test_of_the_proxy_only_its_health_is_answered(path: str, host: str, server: str, status: int):
    assert status_of(path, host, server) == status


def test_the_guard_is_what_ray_asks_for():
    (guard,) = guards()
    assert guard.cls is ProxyGuard


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_real_service_has_no_proxy_in_front_of_it(tmp_path: Any):
    with serving(tmp_path, free_port()) as (client, _):
        asked = [("/-/routes", None), ("/-/healthz", "evil.example"), ("/-/healthz", None)]
        headers = [{} if host is None else {"Host": host} for _, host in asked]
        answers = [client.get(path, headers=sent) for (path, _), sent in zip(asked, headers, strict=True)]
        assert [answer.status_code for answer in answers] == [404, 421, 404]
        assert client.get("/v1/jobs", headers={"Authorization": ""}).status_code == 401
        assert client.get("/v1/jobs").status_code == 200
