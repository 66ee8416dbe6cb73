"""Limits of every request, checked before it is parsed: size, time to arrive, name of the host; and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chorale.tuner.service.settings import redacted

READ_ONLY_METHODS = ("GET", "HEAD", "OPTIONS")
WITH_BODY = ("POST", "PUT", "PATCH")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


def refusal(status: int, rule: str, value: str, way_out: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return a refusal in the form that all have, without what must not be told."""
    facts = {"rule": redacted(rule), "value": redacted(value)[:500], "way_out": redacted(way_out)}
    return JSONResponse({"error": facts}, status_code=status, headers=headers)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """body_bytes: largest request body. body_s: how long a body may take to arrive."""

    body_bytes: int = 16 * 2**20
    body_s: float = 10.0


class _Refused(Exception):  # noqa: N818  # not an error of this program
    """A request that is answered before anybody looks at it: status, rule, value, way out."""


class RequestLimits:
    """Refuses bodies that are too large (413), too slow (408) or not JSON (415), requests of pages elsewhere that would
    change something (403), and on loopback requests for other hosts (421).

    The last keeps a web page elsewhere from talking to the service by having its own name resolve to this machine.
    """

    def __init__(self, app: ASGIApp, limits: BodyLimits, local_only: bool) -> None:
        self._app = app
        self._limits = limits
        self._local_only = local_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                receive = await self._checked(scope["method"], Headers(scope=scope), receive)
            except _Refused as refused:
                status, rule, value, way_out = refused.args
                answer = refusal(status, rule, value, way_out, {"Connection": "close"})
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _checked(self, method: str, headers: Headers, receive: Receive) -> Receive:
        """Return what gives the request that was checked."""
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._local_only and name.lower() not in LOOPBACK_NAMES:
            raise _Refused(421, "a request must name this machine as its host", host, "use the address 127.0.0.1")
        length = headers.get("content-length", "0")
        if length.isdecimal():
            self._require_size(int(length))
        if method not in READ_ONLY_METHODS:
            _require_same_origin(headers)
        if method not in WITH_BODY:
            return receive
        body = await self._body(receive)
        kind = headers.get("content-type", "")
        is_json = kind.partition(";")[0].strip().lower() == "application/json"
        if not is_json and (body or method == "POST"):  # a form can send an empty POST
            value, way_out = kind[:200] or "no type", "send `Content-Type: application/json`"
            raise _Refused(415, "a request must be sent as JSON", value, way_out)
        return _replay(body, receive)

    async def _body(self, receive: Receive) -> bytes:
        """Return the whole body."""
        content = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(400, "a request must be sent whole", "a connection that closed", "send it again")
                    content += message.get("body", b"")
                    self._require_size(len(content))
                    if not message.get("more_body", False):
                        return bytes(content)
        except TimeoutError:
            rule = f"a body must arrive within {self._limits.body_s:g} s"
            raise _Refused(408, rule, f"{len(content)} bytes until then", "send it faster") from None

    def _require_size(self, size_bytes: int) -> None:
        if size_bytes > self._limits.body_bytes:
            rule = f"a body must have at most {self._limits.body_bytes} bytes"
            raise _Refused(413, rule, f"{size_bytes} bytes", "name the network by a spec, or send less")


def _require_same_origin(headers: Headers) -> None:
    """Refuse what changes something and comes from a page of another origin; browsers say so, others say nothing."""
    rule, way_out = "a page elsewhere must not change anything here", "use the page of the service itself"
    site = headers.get("sec-fetch-site", "none")
    if site not in ("same-origin", "none"):
        raise _Refused(403, rule, f"Sec-Fetch-Site: {site}", way_out)
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise _Refused(403, rule, f"Origin: {origin}", way_out)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body once and then what the connection sends."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
