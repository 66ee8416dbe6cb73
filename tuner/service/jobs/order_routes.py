"""Routes that take orders: each answers with a job."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response, status

from tuner.service.http.access import Caller
from tuner.service.http.dependencies import Known, TheDesk
from tuner.service.http.responses import JobView
from tuner.service.jobs.job import JobState
from tuner.service.jobs.plan import order_for
from tuner.service.jobs.scheduler import Desk
from tuner.service.jobs.spec import BoundBody, FindBody, OrderBody, PriceBody, ProgramBody, SynthesisBody

_KNOWN: dict[int | str, dict[str, Any]] = {200: {"model": JobView, "description": "The result was known already."}}

router = APIRouter(prefix="/v1", tags=["jobs"], responses=_KNOWN)


@router.post("/syntheses", response_model=JobView, status_code=202, summary="Design, verify and prove a schedule")
def synthesize(body: SynthesisBody, caller: Known, desk: TheDesk, response: Response) -> dict[str, Any]:
    """Answer with a job whose result is the document of `chorale synth --json` and the schedule file."""
    return _submitted(body, caller, desk, response)


@router.post("/bounds", response_model=JobView, status_code=202, summary="The least time of a collective, proved")
def bound(body: BoundBody, caller: Known, desk: TheDesk, response: Response) -> dict[str, Any]:
    """Answer with a job whose result is the document of `chorale bound --json`."""
    return _submitted(body, caller, desk, response)


@router.post("/finds", response_model=JobView, status_code=202, summary="Efficient topologies of a size and degree")
def find(body: FindBody, caller: Known, desk: TheDesk, response: Response) -> dict[str, Any]:
    """Answer with a job whose result is the document of `chorale find --json`."""
    return _submitted(body, caller, desk, response)


@router.post("/programs", response_model=JobView, status_code=202, summary="Lower a schedule to a program")
def program(body: ProgramBody, caller: Known, desk: TheDesk, response: Response) -> dict[str, Any]:
    """Answer with a job whose result is the checked program of a runtime."""
    return _submitted(body, caller, desk, response)


@router.post("/prices", response_model=JobView, status_code=202, summary="What a schedule costs, by size")
def price(body: PriceBody, caller: Known, desk: TheDesk, response: Response) -> dict[str, Any]:
    """Answer with a job whose result has the simulated time at every size."""
    return _submitted(body, caller, desk, response)


def _submitted(body: OrderBody, caller: Caller, desk: Desk, response: Response) -> dict[str, Any]:
    job = desk.submit(order_for(body, desk.limits, desk.store), caller, body.priority)
    response.status_code = status.HTTP_200_OK if job.state == JobState.DONE else status.HTTP_202_ACCEPTED
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    return job.to_json()
