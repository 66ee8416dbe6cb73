"""The service put together from its settings, in the process that serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI

from runners.ray_jobs import RayJobs
from tuner.service.access import load_access
from tuner.service.api import create_api
from tuner.service.audit import Audit
from tuner.service.desk import Desk
from tuner.service.estimate import Limits
from tuner.service.guard import GuardLimits
from tuner.service.job_store import JobStore


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What `chorale serve` was started with. `folder` is where jobs, results and the audit log are kept."""

    folder: Path
    host: str = "127.0.0.1"
    tokens: str | None = None
    limits: Limits = field(default_factory=Limits)
    guard: GuardLimits = field(default_factory=GuardLimits)

    def build(self) -> FastAPI:
        """Return the application; its desk works while the application runs."""
        access = load_access(self.tokens, self.host)
        audit = Audit(self.folder, time.time)
        desk = Desk(JobStore(self.folder), RayJobs(), self.limits, time.time)
        return create_api(desk, access, audit, self.guard)
