"""Builds the HTTP application of `chorale serve`, with its routes, error responses, logs and scheduler."""

import importlib.metadata
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from anyio import CapacityLimiter, to_thread
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from prometheus_client import generate_latest
from starlette.exceptions import HTTPException
from starlette.types import Scope

from chorale.runners.ray.tasks import RayTaskBackend
from chorale.synth.errors import ChoraleError
from chorale.tuner.files.home import Home
from chorale.tuner.service.access import Access, load_access, load_settings
from chorale.tuner.service.campaigns import Campaigns, DetachedLaunches
from chorale.tuner.service.http import job_routes, middleware
from chorale.tuner.service.http.campaign_routes import best_router, campaign_router
from chorale.tuner.service.http.events import EventStreams, event_router
from chorale.tuner.service.http.schema import REFUSALS, CurrentCaller
from chorale.tuner.service.jobs.job_specs import JobLimits, NetworkPlanner
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.planning import PlanningProcesses
from chorale.tuner.service.jobs.scheduler import JobScheduler
from chorale.tuner.service.jobs.tasks import JobPlanner

ROUTERS = (
    *(job_routes.submission_router, job_routes.job_router, job_routes.result_router, job_routes.topology_router),
    *(campaign_router, best_router, event_router),
)
REQUEST_THREADS, PLANNING_THREADS = 64, 128
"""Number of threads for requests, and number of threads for planning jobs, most of which wait for a free process."""
PLANNING_PROCESSES, PLANNING_S, PLANNING_BYTES = 2, 60.0, 2 * 2**30
"""Number of processes for planning, and the limits of each call to such a process: seconds, and bytes of memory."""


@asynccontextmanager
async def _working(api: FastAPI) -> AsyncIterator[None]:
    api.state.planning = CapacityLimiter(PLANNING_THREADS)
    to_thread.current_default_thread_limiter().total_tokens = REQUEST_THREADS
    api.state.scheduler.start()
    yield
    api.state.stopping.set()
    api.state.scheduler.close()
    api.state.audit.close()


def create_api(
    scheduler: JobScheduler, campaigns: Campaigns, access: Access, audit: middleware.AuditLog, **body_limits: Any
) -> FastAPI:
    """Return the HTTP application. All its error responses have the same form: rule, value and fix.

    body_limits: `body_bytes` and `body_s` of `RequestLimits`
    """
    version = importlib.metadata.version("chorale-collectives")
    api = FastAPI(
        title="Chorale", version=version, responses=REFUSALS, docs_url=None, redoc_url=None, lifespan=_working
    )
    metrics = middleware.Metrics(lambda: scheduler.counts)
    api.state.scheduler, api.state.campaigns, api.state.access, api.state.audit = scheduler, campaigns, access, audit
    api.state.stopping = threading.Event()
    api.state.streams = EventStreams(api.state.stopping)

    def current_health() -> dict[str, Any]:
        return {"ok": scheduler.is_working, "version": version, **scheduler.counts}

    api.state.health = current_health

    @api.get("/healthz", summary="Health of the service", tags=["service"])
    async def health(response: Response) -> dict[str, Any]:
        view = current_health()
        response.status_code = 200 if view["ok"] else 503
        return view

    @api.get("/metrics", summary="Prometheus metrics", response_class=Response, tags=["service"])
    def scrape(_caller: CurrentCaller) -> Response:
        return Response(generate_latest(metrics), media_type=middleware.CONTENT_TYPE)

    for router in ROUTERS:
        api.include_router(router)
    page = resources.files("chorale.tuner.service").joinpath("page")
    api.mount("/", PageFiles(directory=str(page), html=True), name="page")
    api.add_middleware(middleware.RequestLimits, access=access, **body_limits)
    api.add_middleware(middleware.AccessLog, audit=audit, metrics=metrics)

    @api.exception_handler(ChoraleError)
    async def refused(_request: Request, error: ChoraleError) -> JSONResponse:
        return middleware.refusal_of(error)

    @api.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        value = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        return middleware.refusal(422, "the request does not match the OpenAPI document", value, "correct this field")

    @api.exception_handler(HTTPException)
    async def by_status(_request: Request, error: HTTPException) -> JSONResponse:
        way_out = "see /openapi.json for the routes"
        return middleware.refusal(
            error.status_code, "there is no route for this path and method", str(error.detail), way_out, error.headers
        )

    return api


class PageFiles(StaticFiles):
    """Serves the folder `page` of this package. Browsers may cache vendored files, whose names contain the version."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if path.startswith("vendor/") and response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def build_service(root: Path, host: str, tokens: str | None, settings: str | None, limits: JobLimits) -> FastAPI:
    """Return the application for the options of `chorale serve`. Its scheduler runs as long as the application does.

    root:     data folder. Jobs, results and the audit log are stored in its subfolder `service`, which must exist
    tokens:   path of the token file; None for the file in the data folder
    settings: path of the server's settings file; None for the file in the data folder
    """
    home = Home(root)
    access, runners = load_access(tokens, host, home, time.time), load_settings(settings, home)
    audit, store = middleware.AuditLog(home.service, time.time), JobStore(home.service)
    networks = NetworkPlanner(limits, planning=PlanningProcesses(PLANNING_PROCESSES, PLANNING_S, PLANNING_BYTES))
    scheduler = JobScheduler(store, JobPlanner(networks, store), RayTaskBackend(), time.time, limit_s=limits.max_job_s)
    campaigns = Campaigns(home, DetachedLaunches(), store, networks, runners)
    return create_api(scheduler, campaigns, access, audit)
