"""What FastAPI injects into routes: the scheduler, the campaigns and the caller."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from chorale.tuner.service.access import Access, Caller
from chorale.tuner.service.campaigns.campaigns import Campaigns
from chorale.tuner.service.jobs.scheduler import JobScheduler

_bearer = HTTPBearer(auto_error=False, description="A token from the service's token file.")
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def _scheduler(request: Request) -> JobScheduler:
    scheduler: JobScheduler = request.app.state.scheduler
    return scheduler


def _caller(request: Request, credentials: Credentials) -> Caller:
    access: Access = request.app.state.access
    caller = access.caller(None if credentials is None else f"{credentials.scheme} {credentials.credentials}")
    request.state.caller = caller.name
    return caller


def _campaigns(request: Request) -> Campaigns:
    campaigns: Campaigns = request.app.state.campaigns
    return campaigns


CurrentCampaigns = Annotated[Campaigns, Depends(_campaigns)]
CurrentScheduler = Annotated[JobScheduler, Depends(_scheduler)]
CurrentCaller = Annotated[Caller, Depends(_caller)]
"""The caller; the request is refused without one."""
