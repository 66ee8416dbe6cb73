"""Limits of every request, checked before it is parsed: size, time to arrive, name of the host."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

READ_ONLY_METHODS = ("GET", "HEAD", "OPTIONS")
WITH_BODY = ("POST", "PUT", "PATCH")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """body_bytes: largest request body. body_s: how long a body may take to arrive."""

    body_bytes: int = 16 * 2**20
    body_s: float = 10.0


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
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(headers) or _foreign(scope["method"], headers)
        if refusal is None:
            if scope["method"] not in WITH_BODY:
                await self._app(scope, receive, send)
                return
            body = await self._body(receive)
            if isinstance(body, bytes):
                is_empty = not body and scope["method"] != "POST"  # a form can send an empty POST
                body = body if is_empty else _not_json(headers) or body
            if isinstance(body, bytes):
                await self._app(scope, _replay(body, receive), send)
                return
            refusal = body
        await _refuse(send, *refusal)

    def _refusal(self, headers: dict[bytes, bytes]) -> tuple[int, str, str, str] | None:
        host = headers.get(b"host", b"").decode("latin-1")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._local_only and name.lower() not in LOOPBACK_NAMES:
            return 421, "a request must name this machine as its host", host, "use the address 127.0.0.1"
        length = headers.get(b"content-length", b"0").decode("latin-1")
        if length.isdecimal() and int(length) > self._limits.body_bytes:
            return self._too_large(length)
        return None

    async def _body(self, receive: Receive) -> bytes | tuple[int, str, str, str]:
        """Return the whole body, or why it is refused."""
        content = bytearray()
        try:
            async with asyncio.timeout(self._limits.body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return 400, "a request must be sent whole", "a connection that closed", "send it again"
                    content += message.get("body", b"")
                    if len(content) > self._limits.body_bytes:
                        return self._too_large(str(len(content)))
                    if not message.get("more_body", False):
                        return bytes(content)
        except TimeoutError:
            rule = f"a body must arrive within {self._limits.body_s:g} s"
            return 408, rule, f"{len(content)} bytes until then", "send it faster"

    def _too_large(self, value: str) -> tuple[int, str, str, str]:
        rule = f"a body must have at most {self._limits.body_bytes} bytes"
        return 413, rule, f"{value} bytes", "name the network by a spec, or send less"


def _foreign(method: str, headers: dict[bytes, bytes]) -> tuple[int, str, str, str] | None:
    """Refuse what changes something and comes from a page of another origin; browsers say so, others say nothing."""
    if method in READ_ONLY_METHODS:
        return None
    rule, way_out = "a page elsewhere must not change anything here", "use the page of the service itself"
    site = headers.get(b"sec-fetch-site", b"none").decode("latin-1")
    if site not in ("same-origin", "none"):
        return 403, rule, f"Sec-Fetch-Site: {site}", way_out
    origin, host = headers.get(b"origin"), headers.get(b"host", b"")
    if origin is not None and origin.partition(b"://")[2].lower() != host.lower():
        return 403, rule, f"Origin: {origin.decode('latin-1')}", way_out
    return None


def _not_json(headers: dict[bytes, bytes]) -> tuple[int, str, str, str] | None:
    kind = headers.get(b"content-type", b"").decode("latin-1")
    if kind.partition(";")[0].strip().lower() == "application/json":
        return None
    return 415, "a request must be sent as JSON", kind or "no type", "send `Content-Type: application/json`"


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


async def _refuse(send: Send, status: int, rule: str, value: str, way_out: str) -> None:
    document: dict[str, Any] = {"error": {"rule": rule, "value": value[:200], "way_out": way_out}}
    content = json.dumps(document).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
