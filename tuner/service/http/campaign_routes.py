"""Defines the HTTP routes for campaigns, and for the best schedules that campaigns have registered."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field, model_validator

from chorale.tuner.config.campaign_file import parsed_document
from chorale.tuner.config.values import Strict
from chorale.tuner.files.home import CAMPAIGN_NAME
from chorale.tuner.service.access import Caller, NotFound, redacted
from chorale.tuner.service.campaigns import STORED, Campaigns, public_campaign
from chorale.tuner.service.http.schema import CurrentCaller, CurrentCampaigns, CurrentPlanner, note_campaign
from chorale.tuner.service.jobs.job_specs import CollectiveText
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, PrunedTrial, SizeResult, TrialRecord

Name = Annotated[str, Path(pattern=CAMPAIGN_NAME, description="Name of a campaign.")]
TrialId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Id of a complete trial.")]
FileKind = Literal["schedule", "program"]
campaign_router = APIRouter(prefix="/v1/campaigns", tags=["campaigns"])


class CampaignBody(Strict):
    """The content of a campaign file, see `chorale tune --schema`.

    Paths, addresses and hosts cannot be set. Runners that start processes are given as `runner: {profile: NAME}`.
    """

    campaign: dict[str, Any] | None = None
    yaml: Annotated[str, Field(max_length=2**16)] | None = Field(
        default=None, description="Text of the campaign file, instead of `campaign`."
    )
    resume: bool = False

    @model_validator(mode="after")
    def _is_one_of_both(self) -> CampaignBody:
        if (self.campaign is None) == (self.yaml is None):
            raise ValueError("give `campaign` or `yaml`")
        return self

    def document(self) -> dict[str, Any]:
        """Return the keys and values of the campaign. Raises InvalidInput unless the text is a YAML mapping."""
        return parsed_document(self.yaml) if self.campaign is None else self.campaign  # type: ignore[arg-type]


@campaign_router.post("", status_code=202, summary="Launch a campaign")
def launch(body: CampaignBody, request: Request, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Check a campaign and launch it in the cluster."""
    name, runner = campaigns.launch(body.document(), body.resume, caller)
    note_campaign(request, name, runner)
    return {"name": name, "state": campaigns.state(name, caller)[0]}


@campaign_router.post("/checks", summary="Check a campaign without launching it")
def check(body: CampaignBody, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Check a campaign as a launch would, without launching it. An error with status 422 explains what is wrong.

    Returns the number of `ranks`, `points` in the search space and `trials` (at most).
    """
    campaign, _, topology = campaigns.checked(body.document(), caller)
    return {
        "ranks": topology.compute_count,
        "points": math.prod(len(values) for values in campaign.search.dimensions().values()),
        "trials": campaign.budget.trials,
    }


@campaign_router.get("", summary="List the caller's campaigns")
def campaigns_seen(caller: CurrentCaller, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """List campaigns by name; administrators see all users' campaigns.

    `state` is running, ended or failed if the cluster knows the launch. Otherwise, the state is ended after a final
    comparison, unfinished without one, and stored if nothing was recorded. `trials` is the number of finished trials,
    and `complete` the number of measured ones.
    """
    return {"campaigns": campaign_rows(campaigns, caller)}


def campaign_rows(campaigns: Campaigns, caller: Caller) -> list[dict[str, Any]]:
    rows = []
    for name in campaigns.names(caller):
        state, error = campaigns.state(name, caller)
        row = {"name": name, "state": state, "error": _shown(error), "launches": 0, "trials": 0, "complete": 0}
        row |= {"topology": None, "collective": None, "budget": None}
        with suppress(NotFound):  # the campaign has written nothing yet
            snapshot = campaigns.snapshot(name, caller)
            document = snapshot.launch.campaign
            row |= {
                "launches": snapshot.launch.number,
                "trials": len(snapshot.trials),
                "complete": sum(isinstance(trial, CompleteTrial) for trial in snapshot.trials),
                "budget": document["budget"]["trials"],
                "topology": document["topology"],
                "collective": document["collective"],
            }
            if state == STORED:  # the same words as in `chorale campaign list`
                row["state"] = "unfinished" if snapshot.final is None else "ended"
        rows.append(row)
    return rows


@campaign_router.get("/{name}", summary="Current state of a launch")
def campaign(
    name: Name,
    caller: CurrentCaller,
    campaigns: CurrentCampaigns,
    launch: Annotated[
        int | None, Query(ge=1, le=10**9, description="Number of the launch; default: the newest.")
    ] = None,
    after: Annotated[int, Query(ge=0, le=10**9, description="Number of trials to leave out at the start.")] = 0,
) -> dict[str, Any]:
    """Return trials in the order in which they finished, and the best so far.

    A trial's `label` has its parameters in words, and `reason` says why it failed or was not tried. `baseline_time_us`
    is the fastest baseline's time in the same run.
    """
    return campaign_document(campaigns, name, caller, launch, after)


def campaign_document(
    campaigns: Campaigns, name: str, caller: Caller, launch: int | None = None, after: int = 0
) -> dict[str, Any]:
    """Return a launch of a campaign without its first `after` trials, and the best trial at each size so far."""
    snapshot = campaigns.snapshot(name, caller, launch)
    state, error = campaigns.state(name, caller)
    ranked = snapshot.ranked_trials
    best = []
    for index in range(len(ranked[0].sizes) if ranked else 0):
        leader = max(ranked, key=lambda entry, index=index: (entry.sizes[index].speedup, -entry.trial.number))  # type: ignore[misc]
        names = {"trial_id": leader.trial.trial_id, "label": str(leader.trial.candidate)}
        best.append(names | _size(leader.sizes[index]))
    return {
        "name": name,
        "launch": snapshot.launch.number,
        "state": state,
        "error": _shown(error),
        "campaign": public_campaign(snapshot.launch.campaign, campaigns.profile_of(name)),
        "started_s": snapshot.launch.started_unix_s,
        "trials": [_trial(trial) for trial in snapshot.trials[after:]],
        "counts": dict(Counter(trial.state for trial in snapshot.trials)),
        "best": best,
    }


@campaign_router.post("/{name}/stop", status_code=202, summary="Stop a campaign")
def stop(name: Name, request: Request, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Make the launch end soon. Its measurements are kept, and it can be resumed."""
    note_campaign(request, name, campaigns.profile_of(name))
    campaigns.stop(name, caller)
    return {"name": name, "state": campaigns.state(name, caller)[0]}


@campaign_router.post("/{name}/resume", status_code=202, summary="Resume a campaign")
def resume(name: Name, request: Request, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Resume the newest launch. Finished trials are not measured again."""
    note_campaign(request, *campaigns.resume(name, caller))
    return {"name": name, "state": campaigns.state(name, caller)[0]}


@campaign_router.get(
    "/{name}/trials/{trial_id}/{kind}", summary="Schedule or program of a trial", response_class=FileResponse
)
def file(
    name: Name, trial_id: TrialId, kind: FileKind, caller: CurrentCaller, campaigns: CurrentCampaigns
) -> FileResponse:
    """Return the schedule or the program of a measured trial."""
    path = campaigns.file(name, trial_id, kind, caller)
    return FileResponse(path, filename=f"{name}.{kind}{path.suffix}")


def _trial(trial: TrialRecord) -> dict[str, Any]:
    reason = None
    if isinstance(trial, FailedTrial):
        reason = f"{trial.failure_kind.value}: {trial.message}"
    elif isinstance(trial, PrunedTrial):
        reason = trial.reason
    return {
        "number": trial.number,
        "trial_id": trial.trial_id,
        "state": trial.state,
        "label": str(trial.candidate),
        "parameters": trial.candidate.parameters,
        "sizes": [_size(size) for size in trial.sizes] if isinstance(trial, CompleteTrial) else [],
        "speedup": trial.speedup if isinstance(trial, CompleteTrial) else None,
        "seconds": trial.seconds,
        "reason": _shown(reason),
    }


def _shown(text: str | None) -> str | None:
    return None if text is None else redacted(text)


def _size(size: SizeResult) -> dict[str, Any]:
    return {
        "size_bytes": size.size_bytes,
        "time_us": size.median_s * 1e6,
        "baseline_time_us": size.baseline_median_s * 1e6,
        "speedup": size.speedup,
    }


class BestQuery(Strict):
    """The parameters of a request for a registered version."""

    topology: str = Field(max_length=4096, description="Network, as a spec.", examples=["hypercube:3"])
    collective: CollectiveText
    size_bytes: int = Field(ge=1, le=2**50, description="Buffer size in bytes.")
    alias: str = Field(default="champion", pattern=r"^[a-z][a-z0-9_-]{0,40}$", description="Alias of the version.")


Best = Annotated[BestQuery, Query()]

best_router = APIRouter(prefix="/v1/best", tags=["campaigns"])


@best_router.get("", summary="Registered schedule for a network, a collective and a size")
def best(query: Best, caller: CurrentCaller, campaigns: CurrentCampaigns) -> Any:
    """Return the manifest of the registered version; `exact` is false if it is from a neighbouring size class.

    `size_range_bytes` is the range of the size class, `measured` the measurement at the nearest size. If no program
    beat the library, `library` names the library's own algorithm to use, and there are no files.
    """
    return campaigns.best(**query.model_dump(), caller=caller)


@best_router.get("/{kind}", summary="File of the registered schedule or program", response_class=Response)
def best_file(kind: FileKind, query: Best, caller: CurrentCaller, campaigns: CurrentCampaigns) -> Response:
    """Return the file. The status is 409 if nothing is registered, if a check fails, or if the library is the best."""
    content = campaigns.best(**query.model_dump(), caller=caller, kind=kind)
    name = "schedule.parquet" if kind == "schedule" else "program.xml"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
