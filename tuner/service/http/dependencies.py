"""What FastAPI injects into routes: the scheduler, the campaigns, the fabrics and the caller.

They are coroutines, since FastAPI runs each plain function in a thread.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from chorale.tuner.service.access import Access, Caller, CallerRole
from chorale.tuner.service.campaigns.campaigns import Campaigns
from chorale.tuner.service.fabrics import WatchedFabrics
from chorale.tuner.service.jobs.scheduler import JobScheduler

_bearer = HTTPBearer(auto_error=False, description="A token that the service knows; see `chorale token`.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


async def _caller(request: Request, credentials: Credentials) -> Caller:
    access: Access = request.app.state.access
    client = "" if request.client is None else request.client.host
    header = None if credentials is None else f"{credentials.scheme} {credentials.credentials}"
    caller = access.caller(header, client)
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
