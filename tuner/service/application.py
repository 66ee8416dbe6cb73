"""The service put together from its settings, in the process that serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI

from runners.ray_jobs import RayJobs
from tuner.home import Home
from tuner.service.campaigns.campaigns import Campaigns, ResidentLaunches
from tuner.service.http.access import load_access
from tuner.service.http.api import create_api
from tuner.service.http.audit import Audit
from tuner.service.http.request_limits import GuardLimits
from tuner.service.jobs.estimate import Limits
from tuner.service.jobs.scheduler import Desk
from tuner.service.jobs.store import JobStore


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What `chorale serve` was started with. `home` is the data folder; jobs, results and the audit log are in its
    folder for the service, which must exist."""

    home: Path
    host: str = "127.0.0.1"
    tokens: str | None = None
    limits: Limits = field(default_factory=Limits)
    guard: GuardLimits = field(default_factory=GuardLimits)

    def build(self) -> FastAPI:
        """Return the application; its desk works while the application runs."""
        folder = Home(self.home).service
        access = load_access(self.tokens, self.host)
        audit = Audit(folder, time.time)
        store = JobStore(folder)
        desk = Desk(store, RayJobs(), self.limits, time.time)
        campaigns = Campaigns(Home(self.home), ResidentLaunches(), store, self.limits)
        return create_api(desk, campaigns, access, audit, self.guard)
