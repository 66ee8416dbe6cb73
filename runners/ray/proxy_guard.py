"""Blocks the paths under `/-/`, which Ray Serve's proxies answer themselves, except the health check.

Set RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH to `chorale.runners.ray.proxy_guard:guards`, which Ray then calls in each
proxy. The variable must be set for the processes that start the cluster.
"""

import ipaddress
from typing import Any

PREFIX, HEALTH = "/-/", "/-/healthz"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def guards() -> list[Any]:
    """Return the middlewares for a proxy; Ray calls this."""
    from starlette.middleware import Middleware  # noqa: PLC0415  # a Serve dependency, which not everybody has

    return [Middleware(ProxyGuard)]


class ProxyGuard:
    """Middleware that answers 404 to everything under `/-/` except the health check. On loopback, the health check also
    requires a Host header that names this machine.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX):
            await self._app(scope, receive, send)
        elif scope["path"] != HEALTH:
            await _refuse(send, 404)
        elif _arrived_on_loopback(scope) and _host_name(scope) not in LOOPBACK_NAMES:
            await _refuse(send, 421)
        else:
            await self._app(scope, receive, send)


def _arrived_on_loopback(scope: Any) -> bool:
    try:
        return ipaddress.ip_address((scope.get("server") or ("",))[0]).is_loopback
    except ValueError:
        return True  # a socket without an address is local


def _host_name(scope: Any) -> str:
    host: str = dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
    return host if host.endswith("]") else host.rsplit(":", 1)[0]


async def _refuse(send: Any, status: int) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b""})
