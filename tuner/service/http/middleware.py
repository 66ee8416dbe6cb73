"""Handles every request before its route: applies limits, adds security headers, and writes metrics and audit log."""

import asyncio
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chorale.synth.document_limits import require_small_json
from chorale.synth.errors import ChoraleError
from chorale.tuner.service.access import Access, ClientLimit, network_of_client, redacted, status_of

READ_ONLY_METHODS = ("GET", "HEAD", "OPTIONS")
_READ_ONLY_ROUTES = ("/v1/topologies", "/v1/campaigns/checks")
"""Routes whose POST requests change nothing."""
WITH_BODY = ("POST", "PUT", "PATCH")
_REFUSAL_HEADERS = {429: {"Retry-After": "10"}, 401: {"WWW-Authenticate": "Bearer"}}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_BYTES, MAX_FILES, MAX_REFUSED_FILES = 16 * 2**20, 8, 2
LINES_A_MINUTE = 10
"""Maximum number of log lines per minute about a client's refused requests. Further refusals are only counted, and the
client's next line contains the count."""
MAX_COUNTED_CLIENTS = 4096
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def refusal(status: int, rule: str, value: str, way_out: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return an error response in the common form, with secrets removed."""
    texts = {"rule": redacted(rule), "value": redacted(value)[:500], "way_out": redacted(way_out)}
    facts = {name: text.encode(errors="backslashreplace").decode() for name, text in texts.items()}
    return JSONResponse({"error": facts}, status_code=status, headers=headers)


def refusal_of(error: ChoraleError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    status = status_of(error)
    sent = {**_REFUSAL_HEADERS.get(status, {}), **(headers or {})}
    return refusal(status, error.problem, str(error.value), error.way_out, sent)


class _Refused(Exception):  # noqa: N818  # not an error in this program
    """Raised for a request that is refused before routing. Its arguments are those of `refusal`."""


class RequestLimits:
    """Middleware that refuses requests before they are routed.

    It refuses bodies that are too large (413), too slow (408), not JSON (415) or sent without a token (401), and
    requests from other origins that would change something (403). On loopback, requests for other hosts are refused
    (421). This prevents DNS rebinding, in which a foreign web page makes its own host name resolve to this machine.

    body_bytes, body_s: maximum size of a body, and the number of seconds within which it must arrive
    """

    def __init__(self, app: ASGIApp, access: Access, body_bytes: int = 16 * 2**20, body_s: float = 10.0) -> None:
        self._app, self._access = app, access
        self._body_bytes, self._body_s = body_bytes, body_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None
        if scope["type"] == "http":
            try:
                receive = await self._checked(scope, receive)
            except _Refused as refused:
                status, rule, value, way_out = refused.args
                answer = refusal(status, rule, value, way_out, {"Connection": "close"})
            except ChoraleError as error:
                answer = refusal_of(error, {"Connection": "close"})
        await (answer or self._app)(scope, receive, send)

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Check the request and return the `receive` function to use for it. A body is read only with a valid token."""
        method, headers = scope["method"], Headers(scope=scope)
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rsplit(":", 1)[0]
        if self._access.local_only and name.lower() not in LOOPBACK_NAMES:
            raise _Refused(421, "a request must name this machine as its host", host, "use the address 127.0.0.1")
        length = headers.get("content-length", "0")
        if length.isdecimal():
            self._require_size(int(length))
        if method not in READ_ONLY_METHODS:  # browsers send the origin of the page; other clients send no origin
            rule, way_out = (
                "a request that changes something must not come from another origin",
                "use the page of the service itself",
            )
            site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
            if site not in ("same-origin", "none"):
                raise _Refused(403, rule, f"Sec-Fetch-Site: {site}", way_out)
            if origin is not None and origin.partition("://")[2].lower() != host.lower():
                raise _Refused(403, rule, f"Origin: {origin}", way_out)
        if method not in WITH_BODY:
            return receive
        address = scope.get("client")
        caller = self._access.caller(headers.get("authorization"), address[0] if address else "")
        scope.setdefault("state", {})["caller"] = caller
        body = await self._body(receive)
        kind = headers.get("content-type", "")
        is_json = kind.partition(";")[0].strip().lower() == "application/json"
        if not is_json and (body or method == "POST"):  # forms on foreign pages can send a POST without a body
            value, way_out = kind[:200] or "no type", "send `Content-Type: application/json`"
            raise _Refused(415, "a request must be sent as JSON", value, way_out)
        _require_text(body)
        return _replay(body, receive)

    async def _body(self, receive: Receive) -> bytes:
        content = bytearray()
        try:
            async with asyncio.timeout(self._body_s):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refused(400, "a request must be complete", "a connection that closed", "send it again")
                    content += message.get("body", b"")
                    self._require_size(len(content))
                    if not message.get("more_body", False):
                        return bytes(content)
        except TimeoutError:
            rule = f"a body must arrive within {self._body_s:g} s"
            raise _Refused(408, rule, f"{len(content)} bytes until then", "send it faster") from None

    def _require_size(self, size_bytes: int) -> None:
        if size_bytes > self._body_bytes:
            rule = f"a body must have at most {self._body_bytes} bytes"
            raise _Refused(413, rule, f"{size_bytes} bytes", "name the network by a spec, or send less")


def _require_text(body: bytes) -> None:
    """Refuse text that is not UTF-8 or has unpaired surrogates, which JSON can escape but files cannot contain."""
    require_small_json(body, "a request")
    try:
        if "\\ud" in body.decode().lower():
            json.dumps(json.loads(body), ensure_ascii=False).encode()
    except (UnicodeDecodeError, UnicodeEncodeError) as error:
        value, way_out = f"byte {error.start}: {error.reason}", "send UTF-8, without halves of surrogate pairs"
        raise _Refused(400, "a request must be text", value, way_out) from None
    except (ValueError, RecursionError) as error:
        value = f"{type(error).__name__}: {error}"
        raise _Refused(422, "a request must be JSON of limited depth", value, "correct the request") from None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` function that returns `body` first and then the further messages of the connection."""
    replayed = False

    async def replay() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class AuditLog:
    """Writes JSON lines to `folder`: changes to audit.jsonl, refused requests to refused.jsonl. Thread-safe.

    Each file is rotated separately, at `MAX_BYTES`, so that clients without a token cannot displace entries in
    audit.jsonl. Up to `MAX_FILES` and `MAX_REFUSED_FILES` older files are kept.
    """

    def __init__(self, folder: Path, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self._changes = _PrivateFile(folder / "audit.jsonl", MAX_FILES)
        self._refusals = _PrivateFile(folder / "refused.jsonl", MAX_REFUSED_FILES)
        self._throttle = ClientLimit(unix_s, LINES_A_MINUTE)
        self._left_out: dict[str, int] = {}  # client -> number of omitted lines
        self._lock = threading.Lock()

    def note(self, client: str, refused: bool, **facts: Any) -> None:
        """Write one line about a change or a refused request. If the disk is full, only a warning is logged."""
        line = {"unix_s": round(self._unix_s(), 3), "client": client, **facts}
        if not refused:
            self._changes.write(line)
            return
        name = network_of_client(client)
        with self._lock:
            if not self._throttle.admits(client):
                if name in self._left_out or len(self._left_out) < MAX_COUNTED_CLIENTS:
                    self._left_out[name] = self._left_out.get(name, 0) + 1
                return
            left_out = self._left_out.pop(name, 0)
        self._refusals.write(line | ({"left_out_before": left_out} if left_out else {}))

    def close(self) -> None:
        self._changes.close()
        self._refusals.close()


class _PrivateFile(RotatingFileHandler):
    """A log file of JSON lines that only its owner can read."""

    def __init__(self, path: Path, files: int) -> None:
        super().__init__(path, maxBytes=MAX_BYTES, backupCount=files)

    def _open(self) -> Any:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        return stream

    def write(self, line: dict[str, Any]) -> None:
        self.handle(logging.LogRecord("audit", logging.INFO, "", 0, json.dumps(line), None, None))


class Metrics(CollectorRegistry):
    """Prometheus metrics: requests by route and status, their durations, and the number of unfinished jobs."""

    def __init__(self, counts: Callable[[], Mapping[str, int]]) -> None:
        super().__init__()
        self.requests = Counter("chorale_requests", "Requests answered.", ("method", "route", "status"), registry=self)
        what = "Time to answer, except for streams of events."
        self.seconds = Histogram("chorale_request_seconds", what, ("method", "route"), registry=self)
        jobs = Gauge("chorale_jobs", "Unfinished jobs.", ("state",), registry=self)
        for state in ("queued", "running"):
            jobs.labels(state).set_function(lambda state=state: counts()[state])  # type: ignore[misc]


class AccessLog:
    """The outermost middleware: adds security headers and records every request, including refused requests."""

    def __init__(self, app: ASGIApp, audit: AuditLog, metrics: Metrics) -> None:
        self._app, self._audit, self._metrics = app, audit, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s = time.perf_counter()
        status, location, is_stream = 500, None, False

        async def recorded(message: Message) -> None:
            nonlocal status, location, is_stream
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                status, location = message["status"], headers.get("location")
                is_stream = headers.get("content-type", "").startswith("text/event-stream")
            await send(message)

        try:
            await self._app(scope, receive, recorded)
        finally:
            method, route = scope["method"], getattr(scope.get("route"), "path", "other")  # the pattern of the path
            self._metrics.requests.labels(method, route, str(status)).inc()
            if not is_stream:  # a stream lasts as long as the client reads it
                self._metrics.seconds.labels(method, route).observe(time.perf_counter() - started_s)
            is_refusal = status in (401, 403, 429)
            if is_refusal or not (method in READ_ONLY_METHODS or route in _READ_ONLY_ROUTES):
                client, state = scope.get("client"), scope.get("state", {})
                facts = {name: state.get(name) for name in ("token", "role", "campaign", "runner")}
                facts |= {"method": method, "route": route, "status": status, "place": location}
                self._audit.note("" if client is None else client[0], is_refusal or facts["token"] is None, **facts)
