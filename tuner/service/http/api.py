"""The HTTP application: routes, who may call, what is refused, what is written down."""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from synth.errors import ChoraleError
from tuner.service.campaigns import best_routes
from tuner.service.campaigns import routes as campaign_routes
from tuner.service.campaigns.campaigns import Campaigns
from tuner.service.errors import status_of
from tuner.service.http.access import Access
from tuner.service.http.access_log import Recorder
from tuner.service.http.audit import Audit
from tuner.service.http.dependencies import Known
from tuner.service.http.metrics import CONTENT_TYPE, Metrics
from tuner.service.http.request_limits import Guard, GuardLimits
from tuner.service.http.responses import REFUSALS, HealthView
from tuner.service.jobs import order_routes, result_routes
from tuner.service.jobs import routes as job_routes
from tuner.service.jobs.scheduler import Desk

TITLE = "Chorale"


@asynccontextmanager
async def _working(api: FastAPI) -> AsyncIterator[None]:
    """Have the desk work while the application runs."""
    api.state.desk.start()
    yield
    api.state.desk.close()
    api.state.audit.close()


def create_api(desk: Desk, campaigns: Campaigns, access: Access, audit: Audit, guard: GuardLimits) -> FastAPI:
    """Return the application. Refusals have the same form everywhere: rule, value, way out."""
    version = importlib.metadata.version("chorale")
    api = FastAPI(title=TITLE, version=version, responses=REFUSALS, docs_url=None, redoc_url=None, lifespan=_working)
    metrics = Metrics(lambda: desk.counts)

    api.state.desk, api.state.campaigns, api.state.access, api.state.audit = desk, campaigns, access, audit

    @api.get("/healthz", response_model=HealthView, summary="Whether the service works", tags=["service"])
    def health(response: Response) -> dict[str, Any]:
        response.status_code = 200 if desk.is_working else 503
        return {"ok": desk.is_working, "version": version, **desk.counts}

    @api.get("/metrics", summary="Prometheus metrics", response_class=Response, tags=["service"])
    def scrape(_caller: Known) -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    for routes in (order_routes, job_routes, result_routes, campaign_routes, best_routes):
        api.include_router(routes.router)
    page = resources.files("tuner.service").joinpath("page")
    api.mount("/", StaticFiles(directory=str(page), html=True), name="page")
    _add_refusals(api)
    api.add_middleware(Guard, limits=guard, local_only=not access.needs_token)
    api.add_middleware(Recorder, audit=audit, metrics=metrics)
    return api


def _add_refusals(api: FastAPI) -> None:
    def refused(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, ChoraleError):
            raise error
        status = status_of(error)
        headers = {429: {"Retry-After": "10"}, 401: {"WWW-Authenticate": "Bearer"}}.get(status)
        return _refusal(status, error.rule, str(error.value), error.way_out, headers)

    def invalid(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, RequestValidationError):
            raise error
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return _refusal(422, "a request must be as the OpenAPI document says", f"{place}: {first['msg']}", "repair it")

    def by_status(_request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, HTTPException):
            raise error
        way_out = "see /openapi.json for what there is"
        return _refusal(
            error.status_code, "a request must be one that is served", str(error.detail), way_out, error.headers
        )

    api.add_exception_handler(ChoraleError, refused)
    api.add_exception_handler(RequestValidationError, invalid)
    api.add_exception_handler(HTTPException, by_status)


def _refusal(status: int, rule: str, value: str, way_out: str, headers: Any = None) -> JSONResponse:
    facts = {"rule": rule, "value": value[:500], "way_out": way_out}
    return JSONResponse({"error": facts}, status_code=status, headers=headers)
