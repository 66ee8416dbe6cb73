"""Sends server-sent events about health, jobs and campaigns whenever a subscribed topic changes."""

import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query, Request
from sse_starlette import EventSourceResponse, ServerSentEvent

from chorale.synth.errors import ChoraleError, InvalidInput
from chorale.tuner.service.access import Caller, TooManyRequests, redacted, status_of
from chorale.tuner.service.campaigns import Campaigns
from chorale.tuner.service.http.campaign_routes import campaign_document, campaign_rows
from chorale.tuner.service.http.schema import CurrentCaller

PAUSE_S, BEAT_S, LIMIT_S = 0.5, 3, 300.0
"""Longest sleep of a stream, time between two keep-alive messages, and lifetime of a stream, in seconds. When a stream
ends, its client opens another one."""
MAX_STREAMS = 32
"""Maximum number of open streams per token."""
LOOKS_SHARE = 0.05
"""Fraction of a core that polling all topics of a token may use. With many topics, each one is polled less often."""
LOOK_S = 0.001
"""Assumed processor time in seconds of each poll, for the thread and the event, in addition to reading the state."""
MAX_TOPICS, LISTED_JOBS = 8, 100

event_router = APIRouter(prefix="/v1/events", tags=["events"])
TopicNames = Annotated[
    list[str],
    Query(max_length=MAX_TOPICS, description="Some of `health`, `jobs`, `campaigns`, `job/ID`, `campaign/NAME`."),
]


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic of events. Its state is polled every `period_s` seconds.

    look: function that returns the topic's state as plain data; called in a thread. If it raises a ChoraleError,
        `{"error": …}` is sent.
    """

    look: Callable[[], Any]
    period_s: float

    def text(self) -> tuple[str, float]:
        """Return the current state as JSON without line breaks, and the processor time that this took, in seconds."""
        begun_s = time.thread_time()
        try:
            text = json.dumps(self.look(), sort_keys=True, allow_nan=False)
        except ChoraleError as error:
            facts = {"rule": error.problem, "value": redacted(str(error.value)), "way_out": error.way_out}
            text = json.dumps({"error": facts | {"status": status_of(error)}})
        return text, time.thread_time() - begun_s + LOOK_S


class EventStreams:
    """Streams events to clients, with a limited number of streams per token. Use it only in the event loop's thread.

    stopping: event that is set when the service ends; all streams then end, too
    """

    def __init__(self, stopping: Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._stopping = stopping
        self._open: Counter[str] = Counter()
        self._topics: Counter[str] = Counter()
        self._clock = clock

    def response(self, owner: str, topics: Mapping[str, Topic]) -> EventSourceResponse:
        """Return a response that streams `events`. Raises TooManyRequests if `owner` has `MAX_STREAMS` streams open."""
        if self._open[owner] >= MAX_STREAMS:
            rule = f"a token may have at most {MAX_STREAMS} streams of events open"
            raise TooManyRequests(rule, "more", "close some pages")
        return EventSourceResponse(self.events(owner, topics), ping=BEAT_S, sep="\n")

    async def events(self, owner: str, topics: Mapping[str, Topic]) -> AsyncIterator[ServerSentEvent]:
        """Yield an event, named after its topic, whenever the state of a topic has changed."""
        if self._open[owner] >= MAX_STREAMS:  # other streams were opened since the request was checked
            return
        self._open[owner] += 1
        self._topics[owner] += len(topics)
        try:
            begun_s = self._clock()
            due_s, before = dict.fromkeys(topics, begun_s), dict.fromkeys(topics, "")
            yield ServerSentEvent(retry=1000, sep="\n")
            while not self._stopping.is_set() and self._clock() < begun_s + LIMIT_S:
                for name, topic in topics.items():
                    if self._clock() < due_s[name]:
                        continue
                    text, cost_s = await to_thread.run_sync(topic.text)
                    due_s[name] = self._clock() + max(topic.period_s, cost_s * self._topics[owner] / LOOKS_SHARE)
                    if text != before[name]:
                        before[name] = text
                        yield ServerSentEvent(text, event=name, sep="\n")
                await anyio.sleep(min(PAUSE_S, max(0.0, min(due_s.values(), default=0.0) - self._clock())))
        finally:
            self._open[owner] -= 1
            self._topics[owner] -= len(topics)


@event_router.get("", response_class=EventSourceResponse, summary="Changes as server-sent events")
async def events(request: Request, caller: CurrentCaller, topic: TopicNames) -> EventSourceResponse:
    """Send an event named after the topic immediately and after every change of its state; its data are JSON.

    `jobs`, `campaigns` and `job/ID` have the content of their routes. `campaign/NAME` first has the content of its
    route; later, `trials` contains only new ones, and `known` the number of earlier ones. A refusal is
    `{"error": {rule, value, way_out}}`. The stream ends after five minutes; open another one.
    """
    state = request.app.state
    return state.streams.response(caller.name, {name: _topic(name, caller, state) for name in topic})  # type: ignore[no-any-return]


def _topic(name: str, caller: Caller, state: Any) -> Topic:
    scheduler, owner = state.scheduler, None if caller.sees_all else caller.name
    match name.split("/", 1):
        case ["health"]:
            return Topic(state.health, 1.0)
        case ["jobs"]:
            listed = partial(scheduler.job_texts, owner, (), LISTED_JOBS)
            return Topic(lambda: {"jobs": [json.loads(text) for text in listed()]}, 0.5)
        case ["campaigns"]:
            return Topic(lambda: {"campaigns": campaign_rows(state.campaigns, caller)}, 2.0)
        case ["job", job]:
            return Topic(lambda: scheduler.job(job, caller).model_dump(mode="json"), 0.15)
        case ["campaign", campaign]:
            return Topic(_new_trials(state.campaigns, campaign, caller), 1.0)
    raise InvalidInput("unknown topic '{}'", name[:80], "choose from health, jobs, campaigns, job/ID and campaign/NAME")


def _new_trials(campaigns: Campaigns, name: str, caller: Caller) -> Callable[[], dict[str, Any]]:
    """Return a function that returns all trials when first called, later only new ones; `known` counts earlier ones."""
    launch: int | None = None
    known = 0

    def look() -> dict[str, Any]:
        nonlocal launch, known
        document = campaign_document(campaigns, name, caller, after=known)
        if document["launch"] != launch and known:
            document, known = campaign_document(campaigns, name, caller), 0
        launch, document["known"] = document["launch"], known
        known += len(document["trials"])
        return document

    return look
