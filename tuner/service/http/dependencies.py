"""What routes are given: the desk, and who calls."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tuner.service.campaigns.campaigns import Campaigns
from tuner.service.http.access import Access, Caller
from tuner.service.jobs.scheduler import Desk

_bearer = HTTPBearer(auto_error=False, description="A token from the service's token file.")
Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


def _desk(request: Request) -> Desk:
    desk: Desk = request.app.state.desk
    return desk


def _caller(request: Request, given: Given) -> Caller:
    access: Access = request.app.state.access
    caller = access.caller(None if given is None else f"{given.scheme} {given.credentials}")
    request.state.caller = caller.name
    return caller


def _campaigns(request: Request) -> Campaigns:
    campaigns: Campaigns = request.app.state.campaigns
    return campaigns


TheCampaigns = Annotated[Campaigns, Depends(_campaigns)]
TheDesk = Annotated[Desk, Depends(_desk)]
Known = Annotated[Caller, Depends(_caller)]
"""The caller; the request is refused without one."""
