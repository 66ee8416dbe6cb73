"""Dependencies that FastAPI injects into routes, and models of their responses for the OpenAPI document."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from chorale.tuner.service.access import Access, Caller, CallerRole
from chorale.tuner.service.campaigns import Campaigns
from chorale.tuner.service.fabrics import WatchedFabrics
from chorale.tuner.service.jobs.job_store import ErrorFacts, Job
from chorale.tuner.service.jobs.scheduler import JobScheduler

_bearer = HTTPBearer(auto_error=False, description="A token that the service knows; see `chorale token`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _caller(request: Request, credentials: Credentials) -> Caller:
    access: Access = request.app.state.access
    client = "" if request.client is None else request.client.host
    header = None if credentials is None else f"{credentials.scheme} {credentials.credentials}"
    caller: Caller = getattr(request.state, "caller", None) or access.caller(header, client)
    request.state.token, request.state.role = caller.name, caller.role.text
    return caller


async def _scheduler(request: Request) -> JobScheduler:
    return request.app.state.scheduler  # type: ignore[no-any-return]


async def _campaigns(request: Request) -> Campaigns:
    return request.app.state.campaigns  # type: ignore[no-any-return]


async def _fabrics(request: Request) -> WatchedFabrics:
    return request.app.state.fabrics  # type: ignore[no-any-return]


CurrentCaller = Annotated[Caller, Depends(_caller)]
"""The caller; the request is refused without one."""


async def _planner(caller: CurrentCaller) -> Caller:
    caller.require(CallerRole.PLANNER, "this request")
    return caller


CurrentPlanner = Annotated[Caller, Depends(_planner)]
"""The caller; the request is refused to readers."""
CurrentFabrics = Annotated[WatchedFabrics, Depends(_fabrics)]
CurrentCampaigns = Annotated[Campaigns, Depends(_campaigns)]
CurrentScheduler = Annotated[JobScheduler, Depends(_scheduler)]


def note_campaign(request: Request, name: str, runner: str | None = None) -> None:
    """Let the audit log say which campaign a request is about, and on which runner."""
    request.state.campaign, request.state.runner = name, runner


class ErrorView(BaseModel):
    """The body of every refusal."""

    error: ErrorFacts


class JobsView(BaseModel):
    """Jobs, newest first."""

    jobs: list[Job]


class ResultView(BaseModel):
    """A result: the document that the command of its kind prints with --json, and the files that come with it."""

    key: str
    document: dict[str, Any]
    files: list[str]


class LaunchedView(BaseModel):
    """A campaign that was launched, stopped or resumed."""

    name: str
    state: str


class CheckedView(BaseModel):
    """A campaign that could be launched: what the file says, and how many ranks, configurations and trials it has."""

    document: dict[str, Any]
    ranks: int
    points: int
    trials: int


class ImportancesView(BaseModel):
    """Importance of each parameter that varied; empty for too few trials, or if all were equally fast."""

    importances: dict[str, float]


class CampaignRow(BaseModel):
    """Summary of a campaign. state: running, ended, failed; without a launch in the cluster unfinished, or ended by a
    final comparison; stored if it was never launched. trials: finished ones, of which `complete` were measured."""

    name: str
    state: str
    error: str | None
    launches: int
    topology: str | None
    collective: str | None
    trials: int
    complete: int
    budget: int | None


class CampaignsView(BaseModel):
    """Campaigns by name."""

    campaigns: list[CampaignRow]


class TrialSize(BaseModel):
    """A trial at one size, with the fastest baseline of the same run."""

    size_bytes: int
    time_us: float
    baseline_time_us: float
    speedup: float


class TrialView(BaseModel):
    """A trial. `label`: its parameters in words; `reason`: why it failed or was not tried."""

    number: int
    trial_id: str
    state: Literal["complete", "failed", "pruned"]
    label: str
    parameters: dict[str, Any]
    sizes: list[TrialSize]
    speedup: float | None
    seconds: float
    reason: str | None


class BestRow(TrialSize):
    """The best trial at a size, from the final if there was one."""

    trial_id: str
    label: str


class CampaignView(BaseModel):
    """A launch of a campaign: trials from `after` on, and the best so far."""

    name: str
    launch: int
    state: str
    error: str | None
    campaign: dict[str, Any]
    started_s: float
    trials: list[TrialView]
    counts: dict[str, int]
    best: list[BestRow]


class BestView(BaseModel):
    """A registered version. size_range_bytes: of its class; exact: whether the requested size is in it; library: name
    of the library's own algorithm if that is the answer; measured: measurement of the answer at the nearest size.
    """

    model: str
    version: str
    size_range_bytes: list[int]
    exact: bool
    library: str | None
    measured: dict[str, Any]
    manifest: dict[str, Any]


class TopologyView(BaseModel):
    """A network. picture: its nodes with positions, and its links; null if it is too large, with the reason in
    `why`.
    """

    topology: dict[str, Any]
    unit: str
    picture: dict[str, Any] | None
    why: str | None


class MethodView(BaseModel):
    """A method: the collectives that it makes, the options that it obeys."""

    name: str
    summary: str
    collectives: list[str]
    options: list[str]


class FamilyView(BaseModel):
    """A family of networks, or a function of them."""

    syntax: str
    summary: str
    example: str


class CatalogView(BaseModel):
    """Names that requests may use. dashboards: addresses of other pages, null if unknown."""

    methods: list[MethodView]
    targets: list[str]
    families: list[FamilyView]
    runners: list[str]
    profiles: list[str]
    dashboards: dict[str, str | None]


class FabricRow(BaseModel):
    """A fabric in short. links: how many are in each state; table: digest of the published table."""

    name: str
    topology: str
    state: str | None
    is_held: bool
    is_running: bool
    table: str | None
    links: dict[str, int]


class FabricsView(BaseModel):
    """Fabrics by name."""

    fabrics: list[FabricRow]


class FabricView(BaseModel):
    """A fabric as its watch last saw it.

    state: what differs from the declared fabric; table: the published one, why and at which cost; events: the newest
    last, as `chorale watch --json` prints them
    """

    format: str
    name: str
    topology: str
    time_s: float
    state: str | None
    is_held: bool
    is_running: bool
    table: dict[str, Any] | None
    links: list[dict[str, Any]]
    events: list[dict[str, Any]]


class HealthView(BaseModel):
    """Whether the service works, and its load."""

    ok: bool
    version: str
    queued: int
    running: int


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorView, "description": description}
    for status, description in (
        (400, "The request did not come whole, or is not JSON."),
        (401, "No token, or one that is not known."),
        (403, "The role of the token is not enough, or a page elsewhere sent the request."),
        (404, "There is nothing of that name."),
        (408, "The body took too long."),
        (409, "What is asked for is not true, or not possible now."),
        (413, "The body is too large."),
        (415, "The body is not said to be JSON."),
        (421, "The request was meant for another host."),
        (422, "The request breaks a rule."),
        (429, "A quota is used up."),
        (503, "Something that is needed cannot be reached."),
    )
}
