"""The route of server-sent events: health, jobs, campaigns and fabrics, as they change."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse

from chorale.synth.errors import InvalidInput
from chorale.tuner.service.access import Caller
from chorale.tuner.service.campaigns.campaigns import Campaigns
from chorale.tuner.service.http.campaign_routes import campaign_document, campaign_rows
from chorale.tuner.service.http.dependencies import CurrentCaller
from chorale.tuner.service.http.event_stream import Topic
from chorale.tuner.service.http.responses import JobView
from chorale.tuner.service.jobs.job_store import Job

MAX_TOPICS = 8
LISTED_JOBS = 100

event_router = APIRouter(prefix="/v1/events", tags=["events"])

TopicNames = Annotated[
    list[str],
    Query(
        max_length=MAX_TOPICS,
        description="`health`, `jobs`, `campaigns`, `fabrics`, `job/ID`, `campaign/NAME`, `fabric/NAME`; one or more.",
    ),
]


@event_router.get("", response_class=StreamingResponse, summary="What changes, as server-sent events")
async def events(request: Request, caller: CurrentCaller, topic: TopicNames) -> StreamingResponse:
    """Send an event of the topic's name at once, and again whenever what it shows has changed; its data are JSON.

    `jobs`, `campaigns`, `fabrics`, `job/ID` and `fabric/NAME` are what their routes answer. `campaign/NAME` is the
    first time what its route answers; then its `trials` are those that are new, and `known` the number of those before.
    What is refused is `{"error": {rule, value, way_out}}`. The stream ends after five minutes; open another one.
    """
    state = request.app.state
    topics = {name: _topic(name, caller, state) for name in topic}
    return state.streams.response(caller.name, topics)  # type: ignore[no-any-return]


def _topic(name: str, caller: Caller, state: Any) -> Topic:
    kind, _, rest = name.partition("/")
    scheduler, campaigns = state.scheduler, state.campaigns
    owner = None if caller.sees_all else caller.name
    fixed: Mapping[str, Topic] = {
        "health": Topic(lambda: state.health().model_dump(), 1.0),
        "jobs": Topic(lambda: {"jobs": [_job(job) for job in scheduler.jobs(owner, (), LISTED_JOBS)]}, 0.5),
        "fabrics": Topic(lambda: {"fabrics": state.fabrics.rows()}, 1.0),
        "campaigns": Topic(lambda: {"campaigns": campaign_rows(campaigns, caller)}, 2.0),
    }
    if kind == "fabric":
        return Topic(lambda: state.fabrics.state(rest), 0.5)
    if name in fixed:
        return fixed[name]
    if kind == "job":
        return Topic(lambda: _job(scheduler.job(rest, caller)), 0.15)
    if kind == "campaign":
        return Topic(_NewTrials(campaigns, rest, caller), 1.0)
    way_out = "take health, jobs, campaigns, fabrics, job/ID, campaign/NAME or fabric/NAME"
    raise InvalidInput("a topic must be one that there is", name[:80], way_out)


def _job(job: Job) -> dict[str, Any]:
    return JobView.model_validate(job).model_dump(mode="json")


class _NewTrials:
    """Looks at a campaign: all trials of a launch the first time, then those that came since."""

    def __init__(self, campaigns: Campaigns, name: str, caller: Caller) -> None:
        self._document = partial(campaign_document, campaigns, name, caller)
        self._launch: int | None = None
        self._known = 0

    def __call__(self) -> dict[str, Any]:
        """Return the campaign with its new trials, and how many were told before."""
        document = self._document(after=self._known)
        if document["launch"] != self._launch and self._known:
            self._known = 0
            document = self._document()
        self._launch = document["launch"]
        document["known"] = self._known
        self._known += len(document["trials"])
        return document
