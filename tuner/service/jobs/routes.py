"""Routes of jobs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from tuner.service.http.dependencies import Known, TheDesk
from tuner.service.http.responses import JobsView, JobView
from tuner.service.jobs.job import JobState

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of a job.")]

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get("", response_model=JobsView, summary="The caller's jobs, newest first")
def jobs(
    caller: Known, desk: TheDesk, state: JobState | None = None, limit: Annotated[int, Query(ge=1, le=1000)] = 100
) -> dict[str, Any]:
    """List jobs; administrators see those of everybody."""
    owner = None if caller.sees_all else caller.name
    return {"jobs": [job.to_json() for job in desk.jobs(owner, () if state is None else (state,), limit)]}


@router.get("/{job_id}", response_model=JobView, summary="A job, as it is now")
def job(job_id: JobId, caller: Known, desk: TheDesk) -> dict[str, Any]:
    """Return state and progress."""
    return desk.job(job_id, caller).to_json()


@router.delete("/{job_id}", response_model=JobView, summary="Cancel a job")
def cancel(job_id: JobId, caller: Known, desk: TheDesk) -> dict[str, Any]:
    """Take a job off the queue, or stop it; 409 for one that has ended."""
    return desk.cancel(job_id, caller).to_json()
