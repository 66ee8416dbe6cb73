"""Defines the HTTP routes for jobs, results and networks, for example to submit a job and to fetch its result."""

from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response, status
from fastapi.responses import FileResponse

from chorale.synth.methods.catalog import METHODS
from chorale.synth.targets.registry import TARGETS
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS
from chorale.tuner.config.values import Strict
from chorale.tuner.service.access import NotFound
from chorale.tuner.service.campaigns import open_runners
from chorale.tuner.service.http.schema import CurrentCaller, CurrentCampaigns, CurrentPlanner, CurrentScheduler
from chorale.tuner.service.jobs import job_specs
from chorale.tuner.service.jobs.job_store import PLAN_FILE, PROGRAM_FILE, SCHEDULE_FILE, Job, JobState
from chorale.tuner.service.views import schedule_view, topology_view

submission_router = APIRouter(prefix="/v1", tags=["jobs"])


for _kind, _path, _name, _summary, _outcome in (
    (job_specs.SynthesisSpec, "syntheses", "synthesize", "Design, verify and prove a schedule",
     "the document of `chorale synth --json` and the schedule file"),
    (job_specs.BoundSpec, "bounds", "bound", "Prove the least time of a collective",
     "the document of `chorale bound --json`"),
    (job_specs.FindSpec, "finds", "find", "Find efficient topologies of a size and degree",
     "the document of `chorale find --json`"),
    (job_specs.ProgramSpec, "programs", "program", "Lower a schedule to a program",
     "the checked program for a runtime"),
    (job_specs.PriceSpec, "prices", "price", "Predict the time of a schedule by size",
     "the simulated time at each size"),
    (job_specs.JudgeSpec, "judgements", "judge", "Judge measured times",
     "the document of `chorale judge --json`"),
):  # fmt: skip

    @submission_router.post(
        f"/{_path}",
        name=_name,
        summary=_summary,
        description=f"Create a job whose result is {_outcome}.",
        status_code=status.HTTP_202_ACCEPTED,
        responses={200: {"model": Job, "description": "The result is already stored."}},
    )
    async def submit(
        body: _kind,  # type: ignore[valid-type]
        request: Request,
        response: Response,
        caller: CurrentPlanner,
        scheduler: CurrentScheduler,
    ) -> Job:
        # Planning may take seconds, so it has its own threads
        job = await to_thread.run_sync(scheduler.submit, body, caller, limiter=request.app.state.planning)
        response.status_code = status.HTTP_200_OK if job.state == JobState.DONE else status.HTTP_202_ACCEPTED
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        return job


JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of a job.")]
ListLimit = Annotated[int, Query(ge=1, le=1000)]

job_router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
topology_router = APIRouter(prefix="/v1", tags=["networks"])


@job_router.get("", summary="List the caller's jobs, newest first")
def jobs(
    caller: CurrentCaller, scheduler: CurrentScheduler, state: JobState | None = None, limit: ListLimit = 100
) -> Response:
    """List jobs; administrators see all users' jobs."""
    texts = scheduler.job_texts(None if caller.sees_all else caller.name, () if state is None else (state,), limit)
    return Response(f'{{"jobs":[{",".join(texts)}]}}', media_type="application/json")


@job_router.get("/{job_id}", summary="Current state of a job")
def job(job_id: JobId, caller: CurrentCaller, scheduler: CurrentScheduler) -> Job:
    """Return the state and progress of a job."""
    return scheduler.job(job_id, caller)


@job_router.delete("/{job_id}", summary="Cancel a job")
def cancel(job_id: JobId, caller: CurrentPlanner, scheduler: CurrentScheduler) -> Job:
    """Remove a job from the queue, or stop it; 409 if it has already ended."""
    return scheduler.cancel(job_id, caller)


Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Key of a result.")]
FileName = Annotated[
    str, Path(pattern=r"^[a-z]+\.[a-z]+$", max_length=40, description="Name from the `files` of the result.")
]
_MEDIA = {
    SCHEDULE_FILE: "application/vnd.apache.parquet",
    PROGRAM_FILE: "application/xml",
    PLAN_FILE: "application/json",
}

result_router = APIRouter(prefix="/v1/results", tags=["results"])


@result_router.get("/{key}", summary="Result of a job")
def result(key: Key, _caller: CurrentCaller, scheduler: CurrentScheduler) -> Response:
    """Return a result's document and file names."""
    stored = scheduler.store.result_texts(key)
    if stored is None:
        raise NotFound("there is no result {}", key, "take the key from the field `result` of a job that is done")
    document, files = stored
    return Response(f'{{"key":"{key}","document":{document},"files":{files}}}', media_type="application/json")


@result_router.get("/{key}/files/{name}", summary="File of a result", response_class=FileResponse)
def file(key: Key, name: FileName, _caller: CurrentCaller, scheduler: CurrentScheduler) -> FileResponse:
    """Return a result's file: the schedule or the program."""
    path = scheduler.store.file(key, name)
    if path is None:
        raise NotFound("the result has no file {}", name, f"see `files` of /v1/results/{key}")
    return FileResponse(path, media_type=_MEDIA.get(name), filename=f"{key[:12]}.{name}")


@result_router.get("/{key}/picture", summary="Positions of nodes, loads of links, and the tree of a root")
def picture(
    key: Key, caller: CurrentCaller, scheduler: CurrentScheduler, root: Annotated[int, Query(ge=0, le=2**20)] = 0
) -> dict[str, Any]:
    """Return the data for drawing the schedule of a synthesis."""
    return scheduler.planning.call(caller.name, schedule_view, scheduler.store.schedule(key), root)


class NetworkBody(Strict):
    """A network, as a spec or a document."""

    topology: job_specs.Network


@topology_router.post("/topologies", summary="Describe and draw a network")
def described(
    body: NetworkBody, caller: CurrentPlanner, scheduler: CurrentScheduler, campaigns: CurrentCampaigns
) -> dict[str, Any]:
    """Return a network's counts, degree and diameter, and the positions of nodes and links. Nothing is stored.

    `picture` is null if the network is too large to draw; `why` has the reason.
    """
    return scheduler.planning.call(caller.name, topology_view, body.topology, campaigns.limits)


@topology_router.get("/catalog", summary="Names of methods, targets, families and runners")
def catalog(_caller: CurrentCaller, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Return the names that requests may use, and the addresses of the MLflow, Ray and Optuna dashboards."""
    return {
        "methods": [
            {
                "name": method.name,
                "summary": method.summary,
                "collectives": [name.value for name in method.collectives],
                "options": list(method.options),
            }
            for method in METHODS.values()
        ],
        "targets": list(TARGETS),
        "families": [
            {"syntax": form.syntax, "summary": form.summary, "example": form.example}
            for form in (*FAMILIES.values(), *FUNCTIONS.values())
        ],
        "runners": open_runners(),
        "profiles": campaigns.profiles,
        "dashboards": campaigns.dashboards,
    }
