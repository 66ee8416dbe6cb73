"""Health and stored results, answered before routing: nothing is computed, nothing cached takes a thread."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from chorale.synth.errors import ChoraleError
from chorale.tuner.service.access import Access, NotFound
from chorale.tuner.service.http.refusals import refusal_of
from chorale.tuner.service.http.responses import HealthView, ResultView
from chorale.tuner.service.jobs.job_store import JobStore

HEALTH_PATH, RESULT_ROUTE = "/healthz", "/v1/results/{key}"
CACHE_BYTES, MAX_ENTRY_BYTES = 64 * 2**20, 2**20
_RESULT = re.compile(r"/v1/results/([0-9a-f]{64})")
_JSON = "application/json"


class ResultReader:
    """Bodies of results as they are sent. A stored result never changes, so that the newest read stay in memory.

    At most one SQL statement a read; none for what is in memory. `body` may be called by several threads.
    """

    def __init__(self, store: JobStore, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._cache_bytes = cache_bytes
        self._bodies: OrderedDict[str, bytes] = OrderedDict()
        self._held_bytes = 0

    def cached(self, key: str) -> bytes | None:
        """Return the body if it is in memory. For the thread of the event loop, as is `remember`."""
        if (body := self._bodies.get(key)) is not None:
            self._bodies.move_to_end(key)
        return body

    def body(self, key: str) -> bytes:
        """Read the body from the store; NotFound if there is no such result."""
        stored = self._store.stored_result(key)
        if stored is None:
            rule, way_out = "a result must be there", "take the key from the field `result` of a job that is done"
            raise NotFound(rule, key, way_out)
        return ResultView(key=key, document=stored.document, files=stored.files).model_dump_json().encode()

    def remember(self, key: str, body: bytes) -> None:
        """Hold a body in memory; those that were read longest ago go for it."""
        if key in self._bodies or len(body) > MAX_ENTRY_BYTES:
            return
        self._bodies[key] = body
        self._held_bytes += len(body)
        while self._held_bytes > self._cache_bytes:
            _, dropped = self._bodies.popitem(last=False)
            self._held_bytes -= len(dropped)


class DirectReads:
    """Middleware: answers `GET /healthz` and `GET /v1/results/KEY` itself and passes everything else on.

    Tokens, quotas and refusals are those of the routes. Raises nothing of its own.
    """

    def __init__(self, app: ASGIApp, reader: ResultReader, access: Access, health: Callable[[], HealthView]) -> None:
        self._app = app
        self._reader = reader
        self._access = access
        self._health = health

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
        elif scope["path"] == HEALTH_PATH:
            scope["route"] = SimpleNamespace(path=HEALTH_PATH)
            await health_response(self._health())(scope, receive, send)
        elif (match := _RESULT.fullmatch(scope["path"])) is not None:
            scope["route"] = SimpleNamespace(path=RESULT_ROUTE)
            await (await self._result(scope, match[1]))(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _result(self, scope: Scope, key: str) -> Response:
        try:
            self._admit(scope)
            body = self._reader.cached(key)
            if body is None:
                body = await to_thread.run_sync(self._reader.body, key)
                self._reader.remember(key, body)
        except ChoraleError as error:
            return refusal_of(error)
        return Response(body, media_type=_JSON)

    def _admit(self, scope: Scope) -> None:
        """Raise as `Access.caller` does; note for the log who asks."""
        header = Headers(scope=scope).get("authorization", "")
        has_token = bool(header.partition(" ")[2].strip())
        client: tuple[str, int] | None = scope.get("client")
        caller = self._access.caller(header if has_token else None, "" if client is None else client[0])
        state: dict[str, Any] = scope.setdefault("state", {})
        state["token"], state["role"] = caller.name, caller.role.text


def health_response(health: HealthView) -> Response:
    """Return the health as a response: 503 if the service does not work."""
    return Response(health.model_dump_json(), status_code=200 if health.ok else 503, media_type=_JSON)
