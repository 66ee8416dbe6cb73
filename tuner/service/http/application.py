"""The HTTP application with its routes, errors and records, and the service that `chorale serve` starts."""

from __future__ import annotations

import importlib.metadata
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from chorale.runners.ray.tasks import RayTaskBackend
from chorale.synth.errors import ChoraleError
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import Access
from chorale.tuner.service.campaigns.campaigns import Campaigns, DetachedLaunches
from chorale.tuner.service.fabrics import WatchedFabrics
from chorale.tuner.service.http.access_log import CONTENT_TYPE, AccessLog, Metrics
from chorale.tuner.service.http.audit import AuditLog
from chorale.tuner.service.http.campaign_routes import best_router, campaign_router
from chorale.tuner.service.http.dependencies import CurrentCaller
from chorale.tuner.service.http.direct_reads import HEALTH_PATH, DirectReads, ResultReader, health_response
from chorale.tuner.service.http.event_routes import event_router
from chorale.tuner.service.http.event_stream import EventStreams
from chorale.tuner.service.http.explorer import explorer_router
from chorale.tuner.service.http.fabric_routes import fabric_router
from chorale.tuner.service.http.job_routes import job_router, result_router, submission_router
from chorale.tuner.service.http.page_files import PageFiles
from chorale.tuner.service.http.refusals import refusal, refusal_of
from chorale.tuner.service.http.request_limits import BodyLimits, RequestLimits
from chorale.tuner.service.http.responses import REFUSALS, HealthView
from chorale.tuner.service.http.topology_routes import topology_router
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.limits import JobLimits, NetworkPlanner
from chorale.tuner.service.jobs.plan import JobPlanner
from chorale.tuner.service.jobs.planning import PlanningProcesses
from chorale.tuner.service.jobs.scheduler import JobScheduler
from chorale.tuner.service.settings import load_settings
from chorale.tuner.service.tokens import load_access

TITLE = "Chorale"
ROUTERS = (
    *(submission_router, job_router, result_router, topology_router),
    *(campaign_router, best_router, fabric_router, event_router, explorer_router),
)
REQUEST_THREADS, PLANNING_THREADS = 64, 128
"""Threads of requests, and of those that plan jobs; most of them wait for their turn at a process."""
PLANNING_PROCESSES = 2


@asynccontextmanager
async def _working(api: FastAPI) -> AsyncIterator[None]:
    """Run the scheduler as long as the application."""
    api.state.planning = CapacityLimiter(PLANNING_THREADS)
    to_thread.current_default_thread_limiter().total_tokens = REQUEST_THREADS
    api.state.scheduler.start()
    yield
    api.state.stopping.set()
    api.state.scheduler.close()
    api.state.audit.close()


def create_api(
    scheduler: JobScheduler, campaigns: Campaigns, access: Access, audit: AuditLog, body_limits: BodyLimits
) -> FastAPI:
    """Return the application. Refusals have the same form everywhere: rule, value, way out."""
    version = importlib.metadata.version("chorale-collectives")
    api = FastAPI(title=TITLE, version=version, responses=REFUSALS, docs_url=None, redoc_url=None, lifespan=_working)
    metrics = Metrics(lambda: scheduler.counts)

    api.state.scheduler, api.state.campaigns, api.state.access, api.state.audit = scheduler, campaigns, access, audit

    api.state.fabrics = WatchedFabrics(campaigns.home)
    api.state.stopping = threading.Event()
    api.state.streams = EventStreams(api.state.stopping)

    def current_health() -> HealthView:
        counts = scheduler.counts
        return HealthView(ok=scheduler.is_working, version=version, queued=counts["queued"], running=counts["running"])

    api.state.health = current_health

    @api.get(HEALTH_PATH, response_model=HealthView, summary="Whether the service works", tags=["service"])
    def health() -> Response:
        return health_response(current_health())

    @api.get("/metrics", summary="Prometheus metrics", response_class=Response, tags=["service"])
    def scrape(_caller: CurrentCaller) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    for router in ROUTERS:
        api.include_router(router)
    api.mount("/", PageFiles(), name="page")
    _add_refusals(api)
    reader = ResultReader(scheduler.store)
    api.add_middleware(DirectReads, reader=reader, access=access, health=current_health)
    api.add_middleware(RequestLimits, limits=body_limits, local_only=access.local_only)
    api.add_middleware(AccessLog, audit=audit, metrics=metrics)
    return api


def _add_refusals(api: FastAPI) -> None:
    def refused(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, ChoraleError):
            raise error
        return refusal_of(error)

    def invalid(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, RequestValidationError):
            raise error
        first = error.errors()[0]
        location = ".".join(str(part) for part in first["loc"])
        return refusal(
            422, "a request must be as the OpenAPI document says", f"{location}: {first['msg']}", "repair it"
        )

    def by_status(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, HTTPException):
            raise error
        way_out = "see /openapi.json for what there is"
        return refusal(
            error.status_code, "a request must be one that is served", str(error.detail), way_out, error.headers
        )

    api.add_exception_handler(ChoraleError, refused)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(HTTPException, by_status)


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """The options of `chorale serve`.

    home:     data folder; jobs, results and the audit log are in its folder for the service, which must exist
    tokens:   path of the token file, None for that of `home`
    settings: path of the server's own settings, None for those of `home`
    """

    home: Path
    host: str = "127.0.0.1"
    tokens: str | None = None
    settings: str | None = None
    limits: JobLimits = field(default_factory=JobLimits)
    body_limits: BodyLimits = field(default_factory=BodyLimits)

    def build(self) -> FastAPI:
        """Return the application; its scheduler works while the application runs."""
        home, limits = Home(self.home), self.limits
        access = load_access(self.tokens, self.host, home, time.time)
        settings = load_settings(self.settings, home)
        audit, store = AuditLog(home.service, time.time), JobStore(home.service)
        planning = PlanningProcesses(PLANNING_PROCESSES, limits.plan_s, limits.plan_bytes)
        networks = NetworkPlanner(limits, planning=planning)
        planner = JobPlanner(networks, store, self.home)
        scheduler = JobScheduler(store, planner, RayTaskBackend(), time.time, limit_s=limits.job_s)
        campaigns = Campaigns(home, DetachedLaunches(), store, networks, settings)
        return create_api(scheduler, campaigns, access, audit, self.body_limits)
