"""Server-sent events: what a client looks at, sent again whenever it has changed."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from threading import Event
from typing import Any

import anyio
from anyio import to_thread
from starlette.responses import StreamingResponse

from chorale.synth.errors import ChoraleError
from chorale.tuner.service.access import TooManyRequests, status_of
from chorale.tuner.service.redaction import redacted

PAUSE_S, BEAT_S, LIMIT_S = 0.1, 3.0, 300.0
"""Between two turns of a stream; between two signs of life; after `LIMIT_S` a stream ends, and its client opens
another."""
MAX_STREAMS = 32
"""Open streams of one token."""

Look = Callable[[], Any]
"""Returns what is to be seen, as plain data; called in a thread. A ChoraleError is sent as `{"error": …}`."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What is looked at, every `period_s`."""

    look: Look
    period_s: float


class EventStreams:
    """Open streams by owner, and whether new ones are taken. For the thread of the event loop.

    stopping: set when the service ends, and the streams with it
    """

    def __init__(self, stopping: Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._stopping = stopping
        self._open: Counter[str] = Counter()
        self._clock = clock

    def response(self, owner: str, topics: Mapping[str, Topic]) -> StreamingResponse:
        """Return a stream with an event of a topic's name whenever its look sees something else than before.

        Raises TooManyRequests above `MAX_STREAMS` of one owner.
        """
        if self._open[owner] >= MAX_STREAMS:
            rule = f"a token may have at most {MAX_STREAMS} streams of events open"
            raise TooManyRequests(rule, "more", "close some pages")
        return StreamingResponse(self._events(owner, topics), media_type="text/event-stream")

    async def _events(self, owner: str, topics: Mapping[str, Topic]) -> AsyncIterator[bytes]:
        self._open[owner] += 1
        try:
            begun_s = sent_s = self._clock()
            due_s, before = dict.fromkeys(topics, begun_s), dict.fromkeys(topics, "")
            yield b"retry: 1000\n\n"
            while not self._stopping.is_set() and self._clock() < begun_s + LIMIT_S:
                for name, topic in topics.items():
                    if self._clock() < due_s[name]:
                        continue
                    text = await to_thread.run_sync(_text_of, topic.look)
                    due_s[name] = self._clock() + topic.period_s
                    if text != before[name]:
                        before[name], sent_s = text, self._clock()
                        yield f"event: {name}\ndata: {text}\n\n".encode()
                if self._clock() > sent_s + BEAT_S:
                    sent_s = self._clock()
                    yield b": alive\n\n"
                await anyio.sleep(PAUSE_S)
        finally:
            self._open[owner] -= 1


def _text_of(look: Look) -> str:
    """Return what is seen as JSON, which has no line breaks."""
    try:
        return json.dumps(look(), sort_keys=True, allow_nan=False)
    except ChoraleError as error:
        facts = {"rule": error.rule, "value": redacted(str(error.value)), "way_out": error.way_out}
        return json.dumps({"error": facts | {"status": status_of(error)}})
