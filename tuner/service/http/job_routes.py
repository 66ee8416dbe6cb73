"""Routes of jobs, results, networks and fabrics: submit a specification, watch the job, fetch its result."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Depends, Path, Query, Request, Response, status
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict

from chorale.synth.methods.catalog import METHODS
from chorale.synth.targets.registry import TARGETS
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS
from chorale.tuner.service.access import CallerRole, NotFound
from chorale.tuner.service.campaigns import open_runners
from chorale.tuner.service.http.schema import (
    CurrentCaller,
    CurrentCampaigns,
    CurrentFabrics,
    CurrentPlanner,
    CurrentScheduler,
)
from chorale.tuner.service.jobs import job_specs
from chorale.tuner.service.jobs.job_store import Job, JobState
from chorale.tuner.service.jobs.scheduler import JobScheduler
from chorale.tuner.service.jobs.tasks import PLAN_FILE, PROGRAM_FILE, SCHEDULE_FILE
from chorale.tuner.service.views import schedule_view, simulated_trace, topology_view

_STORED: dict[int | str, dict[str, Any]] = {200: {"model": Job, "description": "The result was known already."}}
_ACCEPTED: dict[str, Any] = {"response_model": Job, "status_code": status.HTTP_202_ACCEPTED}

submission_router = APIRouter(prefix="/v1", tags=["jobs"], responses=_STORED)

Submit = Callable[[job_specs.AnyJobSpec], Awaitable[Job]]


def _submission(request: Request, response: Response, caller: CurrentPlanner, scheduler: CurrentScheduler) -> Submit:
    """Return the function that plans and queues a job in one of the threads for planning, which may take seconds."""

    async def submit(spec: job_specs.AnyJobSpec) -> Job:
        job = await to_thread.run_sync(scheduler.submit, spec, caller, limiter=request.app.state.planning)
        response.status_code = status.HTTP_200_OK if job.state == JobState.DONE else status.HTTP_202_ACCEPTED
        response.headers["Location"] = f"/v1/jobs/{job.id}"
        return job

    return submit


Submission = Annotated[Submit, Depends(_submission)]


@submission_router.post("/syntheses", **_ACCEPTED, summary="Design, verify and prove a schedule")
async def synthesize(body: job_specs.SynthesisSpec, submit: Submission) -> Job:
    """Create a job whose result is the document of `chorale synth --json` and the schedule file."""
    return await submit(body)


@submission_router.post("/bounds", **_ACCEPTED, summary="The least time of a collective, proved")
async def bound(body: job_specs.BoundSpec, submit: Submission) -> Job:
    """Create a job whose result is the document of `chorale bound --json`."""
    return await submit(body)


@submission_router.post("/finds", **_ACCEPTED, summary="Efficient topologies of a size and degree")
async def find(body: job_specs.FindSpec, submit: Submission) -> Job:
    """Create a job whose result is the document of `chorale find --json`."""
    return await submit(body)


@submission_router.post("/programs", **_ACCEPTED, summary="Lower a schedule to a program")
async def program(body: job_specs.ProgramSpec, submit: Submission) -> Job:
    """Create a job whose result is the checked program for a runtime."""
    return await submit(body)


@submission_router.post("/prices", **_ACCEPTED, summary="What a schedule costs, by size")
async def price(body: job_specs.PriceSpec, submit: Submission) -> Job:
    """Create a job whose result has the simulated time at every size."""
    return await submit(body)


@submission_router.post("/judgements", **_ACCEPTED, summary="Whether measured times are good")
async def judge(body: job_specs.JudgeSpec, submit: Submission) -> Job:
    """Create a job whose result is the document of `chorale judge --json`."""
    return await submit(body)


JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{32}$", description="Id of a job.")]
ListLimit = Annotated[int, Query(ge=1, le=1000)]

job_router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@job_router.get("", summary="The caller's jobs, newest first")
def jobs(
    caller: CurrentCaller,
    scheduler: CurrentScheduler,
    state: JobState | None = None,
    limit: ListLimit = 100,
) -> dict[str, Any]:
    """List jobs; administrators see those of all users."""
    owner = None if caller.sees_all else caller.name
    return {"jobs": scheduler.jobs(owner, () if state is None else (state,), limit)}


@job_router.get("/{job_id}", summary="A job, as it is now")
def job(job_id: JobId, caller: CurrentCaller, scheduler: CurrentScheduler) -> Job:
    """Return state and progress."""
    return scheduler.job(job_id, caller)


@job_router.delete("/{job_id}", summary="Cancel a job")
def cancel(job_id: JobId, caller: CurrentPlanner, scheduler: CurrentScheduler) -> Job:
    """Take a job off the queue, or stop it; 409 for one that has ended."""
    return scheduler.cancel(job_id, caller)


Key = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Key of a result.")]
FileName = Annotated[str, Path(pattern=r"^[a-z]+\.[a-z]+$", max_length=40, description="One of the result's `files`.")]
Root = Annotated[int, Query(ge=0, le=2**20)]
_MEDIA = {
    SCHEDULE_FILE: "application/vnd.apache.parquet",
    PROGRAM_FILE: "application/xml",
    PLAN_FILE: "application/json",
}

result_router = APIRouter(prefix="/v1/results", tags=["results"])


@result_router.get("/{key}", summary="What came of a job")
def result(key: Key, _caller: CurrentCaller, scheduler: CurrentScheduler) -> Response:
    """Return the document and the names of the files."""
    stored = scheduler.store.result_texts(key)
    if stored is None:
        raise NotFound("there is no result {}", key, "take the key from the field `result` of a job that is done")
    document, files = stored
    return Response(f'{{"key":"{key}","document":{document},"files":{files}}}', media_type="application/json")


@result_router.get("/{key}/files/{name}", summary="A file of a result", response_class=FileResponse)
def file(key: Key, name: FileName, _caller: CurrentCaller, scheduler: CurrentScheduler) -> FileResponse:
    """Return the schedule or the program."""
    path = scheduler.store.file(key, name)
    if path is None:
        raise NotFound("a file must be one of its result", name, f"see `files` of /v1/results/{key}")
    return FileResponse(path, media_type=_MEDIA.get(name), filename=f"{key[:12]}.{name}")


@result_router.get("/{key}/picture", summary="Places of nodes, loads of links, the tree of a root")
def picture(
    key: Key, caller: CurrentCaller, scheduler: CurrentScheduler, root: Annotated[int, Query(ge=0, le=2**20)] = 0
) -> dict[str, Any]:
    """Return the data for drawing the schedule of a synthesis."""
    return scheduler.planning.call(caller.name, schedule_view, _schedule(scheduler, key), root)


TraceSize = Annotated[int, Query(ge=1, le=2**40, description="Buffer size in bytes.")]
LinkRate = Annotated[float, Query(gt=0, le=10**6, description="Gbit/s of a link, for networks without bandwidths.")]
Alpha = Annotated[float, Query(ge=0, le=10**6, description="Microseconds of a message besides its bytes.")]


@result_router.get("/{key}/trace", summary="A simulated run of a schedule, for Perfetto", response_class=Response)
def trace(
    key: Key,
    caller: CurrentCaller,
    scheduler: CurrentScheduler,
    size_bytes: TraceSize = 2**20,
    link_gbps: LinkRate = 100.0,
    alpha_us: Alpha = 1.0,
) -> Response:
    """Return an event for each message, in the format of Perfetto and chrome://tracing."""
    content = _schedule(scheduler, key)
    text = scheduler.planning.call(caller.name, simulated_trace, content, size_bytes, link_gbps, alpha_us)
    return Response(text, media_type="application/json")


def _schedule(scheduler: JobScheduler, key: str) -> bytes:
    path = scheduler.store.file(key, SCHEDULE_FILE)
    if path is None:
        raise NotFound("what is shown must be the schedule of a result", key, "take the result of a synthesis")
    return path.read_bytes()


topology_router = APIRouter(prefix="/v1", tags=["networks"])

Spec = Annotated[str, Query(max_length=4096, description="A topology spec.", examples=["torus:4x4"])]


class NetworkBody(BaseModel):
    """A network that has no spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topology: job_specs.Network


@topology_router.get("/topologies", summary="A network by its spec, and its picture")
def described(
    topology: Spec, caller: CurrentPlanner, scheduler: CurrentScheduler, campaigns: CurrentCampaigns
) -> dict[str, Any]:
    """Return counts, degree and diameter of a network, and positions of nodes and links.

    `picture` is null if the network is too large to draw; `why` has the reason.
    """
    return scheduler.planning.call(caller.name, topology_view, topology, campaigns.limits)


@topology_router.post("/topologies", summary="A network from a document, and its picture")
def described_document(
    body: NetworkBody, caller: CurrentPlanner, scheduler: CurrentScheduler, campaigns: CurrentCampaigns
) -> dict[str, Any]:
    """Return what the GET returns, for a document of the format chorale-topology/1. Nothing is stored."""
    return scheduler.planning.call(caller.name, topology_view, body.topology, campaigns.limits)


@topology_router.get("/catalog", summary="Methods, targets, families, runners: the names")
def catalog(_caller: CurrentCaller, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Return the names that requests may use, and the addresses of the dashboards of MLflow, Ray and Optuna."""
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


FabricName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="Name of a watch.")]

fabric_router = APIRouter(prefix="/v1/fabrics", tags=["fabrics"])


@fabric_router.get("", summary="Fabrics under watch")
def watched(_caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """List fabrics whose watches write to the data folder of the service: numbers of links in each state, and the
    digest of the published table.
    """
    return {"fabrics": fabrics.rows()}


@fabric_router.get("/{name}", summary="A fabric, as its watch last saw it")
def fabric(name: FabricName, _caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """Return its links with state, rate and latency, the present table, and what happened."""
    return fabrics.state(name)


def control(name: FabricName, request: Request, caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """Return the state of a fabric after a request to its watch, which takes the role operator.

    `hold` keeps the present table, whatever the watch plans; `release` ends that; `roll-back` publishes the table
    before the present one, and holds it.
    """
    caller.require(CallerRole.OPERATOR, "controlling a fabric")
    verb = request.url.path.rpartition("/")[2]
    return fabrics.roll_back(name) if verb == "roll-back" else fabrics.hold(name, verb == "hold")


for _verb, _does in {"hold": "Publish nothing for now", "release": "Publish again", "roll-back": "Go back"}.items():
    fabric_router.post(f"/{{name}}/{_verb}", status_code=202, summary=_does)(control)
