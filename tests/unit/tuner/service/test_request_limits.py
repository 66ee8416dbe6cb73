"""Bodies that never end, end early or come too slowly are refused before anything else looks at them."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chorale.tuner.service.access import Access
from chorale.tuner.service.http.middleware import RequestLimits
from tests.unit.tuner.service.conftest import BEARER, LOCAL


async def answered(
    messages: AsyncIterator[dict[str, Any]], token: str | None = BEARER["Authorization"], **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send a POST whose body comes as `messages`; return the status and the document."""
    sent: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps({"bytes": len(body)}).encode()})

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    lines = [
        (b"host", b"127.0.0.1:8600"),
        (b"content-type", b"application/json"),
        *(() if token is None else ((b"authorization", token.encode()),)),
        *((name.encode(), value.encode()) for name, value in headers.items()),
    ]
    scope = {"type": "http", "method": "POST", "headers": lines}
    limits = RequestLimits(application, Access(lambda: LOCAL, local_only=True), body_bytes=100, body_s=0.2)
    await limits(scope, lambda: anext(messages), send)  # type: ignore[arg-type]
    return sent[0]["status"], json.loads(sent[1]["body"])


async def pieces(count: int, pause_s: float, size: int = 1) -> AsyncIterator[dict[str, Any]]:
    for number in range(count):
        await asyncio.sleep(pause_s)
        yield {"type": "http.request", "body": b"x" * size, "more_body": number < count - 1}


async def cut_off() -> AsyncIterator[dict[str, Any]]:
    yield {"type": "http.request", "body": b"x", "more_body": True}
    yield {"type": "http.disconnect"}


@pytest.mark.parametrize(
    ("messages", "status"),
    [
        (lambda: pieces(4, 0.0), 200),
        (lambda: pieces(100, 0.05), 408),  # a byte now and then, for ever
        (lambda: pieces(3, 0.0, 50), 413),
        (cut_off, 400),
    ],
)
def test_bodies(messages, status):
    found, document = asyncio.run(answered(messages()))
    assert found == status
    assert document == {"bytes": 4} if status == 200 else set(document["error"]) == {"rule", "value", "way_out"}


def test_a_length_that_is_too_large_and_a_body_without_a_token_are_refused_unread():
    async def never() -> AsyncIterator[dict[str, Any]]:
        raise AssertionError("the body was read")
        yield {}

    for token, length, status in (
        (BEARER["Authorization"], "101", 413),
        (None, "9", 401),
        ("Bearer guessed", "9", 401),
    ):
        assert asyncio.run(answered(never(), token, **{"content-length": length}))[0] == status
