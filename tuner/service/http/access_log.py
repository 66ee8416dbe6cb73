"""Counts every request, writes down those that change something or are refused, and adds headers to every answer."""

from __future__ import annotations

import time

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tuner.service.http.audit import Audit
from tuner.service.http.metrics import Metrics

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_READING = ("GET", "HEAD")
_WRITTEN_DOWN = (401, 429)


class Recorder:
    """Sits around the whole application, so that refusals of every kind are seen."""

    def __init__(self, app: ASGIApp, audit: Audit, metrics: Metrics) -> None:
        self._app = app
        self._audit = audit
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        status, place = 500, None

        async def recorded(message: Message) -> None:
            nonlocal status, place
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                status, place = message["status"], headers.get("location")
            await send(message)

        try:
            await self._app(scope, receive, recorded)
        finally:
            self._record(scope, status, place, time.perf_counter() - started_s)

    def _record(self, scope: Scope, status: int, place: str | None, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.answered(scope["method"], route, status, seconds)
        if scope["method"] not in _READING or status in _WRITTEN_DOWN:
            client = scope.get("client")
            self._audit.note(
                caller=scope.get("state", {}).get("caller"),
                method=scope["method"],
                route=route,
                status=status,
                place=place,
                client=None if client is None else client[0],
            )
