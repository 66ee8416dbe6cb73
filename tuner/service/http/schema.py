"""Defines dependencies that FastAPI injects into routes, and error responses that all routes share."""

from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel

from chorale.tuner.service.access import Access, Caller, CallerRole
from chorale.tuner.service.campaigns import Campaigns
from chorale.tuner.service.jobs.job_store import ErrorFacts
from chorale.tuner.service.jobs.scheduler import JobScheduler

_bearer = HTTPBearer(auto_error=False, description="Token of the service, see `chorale token`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _caller(request: Request, credentials: Credentials) -> Caller:
    access: Access = request.app.state.access
    client = "" if request.client is None else request.client.host
    header = None if credentials is None else f"{credentials.scheme} {credentials.credentials}"
    caller: Caller = getattr(request.state, "caller", None) or access.caller(header, client)
    request.state.token, request.state.role = caller.name, caller.role.text
    return caller


def _of_application(name: str) -> Any:
    async def part(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(part)


CurrentCaller = Annotated[Caller, Depends(_caller)]
"""Route parameter: the caller. Requests without a valid token are refused."""


async def _planner(caller: CurrentCaller) -> Caller:
    caller.require(CallerRole.PLANNER, "this request")
    return caller


CurrentPlanner = Annotated[Caller, Depends(_planner)]
"""Route parameter: a caller who is at least a planner. Requests from readers are refused."""
CurrentCampaigns = Annotated[Campaigns, _of_application("campaigns")]
CurrentScheduler = Annotated[JobScheduler, _of_application("scheduler")]


def note_campaign(request: Request, name: str, runner: str | None = None) -> None:
    """Add the campaign that a request is about, and its runner, to the request's line in the audit log."""
    request.state.campaign, request.state.runner = name, runner


class ErrorView(BaseModel):
    """The body of every error response."""

    error: ErrorFacts


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorView, "description": description}
    for status, description in (
        (400, "The request is incomplete or not JSON."),
        (401, "The token is missing or unknown."),
        (403, "The role of the token is not sufficient, or a page of another origin sent the request."),
        (404, "Nothing has this name."),
        (408, "The body did not arrive in time."),
        (409, "The request is not possible in the current state."),
        (413, "The body is too large."),
        (415, "The content type is not JSON."),
        (421, "The request is for another host."),
        (422, "The request breaks a rule."),
        (429, "A quota is used up."),
        (503, "A required service cannot be reached."),
    )
}
