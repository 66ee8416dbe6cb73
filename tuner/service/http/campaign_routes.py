"""Routes of campaigns, and of the best schedules that campaigns have registered."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from chorale.tuner.config.campaign_file import parsed_document
from chorale.tuner.files.home import CAMPAIGN_NAME
from chorale.tuner.service.access import Caller, NotFound
from chorale.tuner.service.campaigns import STORED, Campaigns, public_campaign
from chorale.tuner.service.http.schema import CurrentCaller, CurrentCampaigns, CurrentPlanner, note_campaign
from chorale.tuner.service.jobs.job_specs import CollectiveText
from chorale.tuner.service.settings import redacted
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, PrunedTrial, SizeResult, TrialRecord

Name = Annotated[str, Path(pattern=CAMPAIGN_NAME, description="Name of a campaign.")]
TrialId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Id of a complete trial.")]
FileKind = Literal["schedule", "program"]


YamlText = Annotated[str, Field(max_length=2**16)]


class CampaignBody(BaseModel):
    """A campaign file, as YAML would be read: see `chorale tune --schema`.

    Paths, addresses and hosts are the service's own; runners that start processes are `runner: {profile: NAME}`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    campaign: dict[str, Any] | None = None
    yaml: YamlText | None = Field(default=None, description="The same as text, in place of `campaign`.")
    resume: bool = False

    @model_validator(mode="after")
    def _is_one_of_both(self) -> CampaignBody:
        if (self.campaign is None) == (self.yaml is None):
            raise ValueError("give `campaign` or `yaml`")
        return self

    def document(self) -> dict[str, Any]:
        """Return the keys and values of the campaign. Raises InvalidInput unless the text is a YAML mapping."""
        return parsed_document(self.yaml) if self.campaign is None else self.campaign  # type: ignore[arg-type]


class CampaignText(BaseModel):
    """A campaign file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    yaml: YamlText


campaign_router = APIRouter(prefix="/v1/campaigns", tags=["campaigns"])


@campaign_router.post("", status_code=202, summary="Launch a campaign")
def launch(body: CampaignBody, request: Request, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Check a campaign, as a YAML file would hold it, and launch it into the cluster."""
    name, runner = campaigns.launch(body.document(), body.resume, caller)
    note_campaign(request, name, runner)
    return {"name": name, "state": campaigns.state(name, caller)[0]}


@campaign_router.post("/checks", summary="Whether a campaign could be launched")
def check(body: CampaignText, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Check a campaign file as a launch would, without launching. 422 explains what is wrong.

    Returns the `document` of the file, and the numbers of `ranks`, `points` of the search space and `trials` at most.
    """
    document = parsed_document(body.yaml)
    campaign, _, topology = campaigns.checked(document, caller)
    return {
        "document": document,
        "ranks": topology.compute_count,
        "points": math.prod(len(values) for values in campaign.search.dimensions().values()),
        "trials": campaign.budget.trials,
    }


@campaign_router.get("/{name}/importances", summary="Which parameters mattered")
def importances(name: Name, caller: CurrentCaller, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Return how much each parameter decided whether a trial was among the best, by Optuna's PED-ANOVA; sum 1."""
    return {"importances": campaigns.importances(name, caller)}


@campaign_router.get("", summary="The caller's campaigns")
def campaigns_seen(caller: CurrentCaller, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """List campaigns by name; administrators see those of all users.

    `state` is running, ended or failed; without a launch in the cluster it is unfinished, or ended by a final
    comparison; stored if it was never launched. Of the finished `trials`, `complete` were measured.
    """
    return {"campaigns": campaign_rows(campaigns, caller)}


def campaign_rows(campaigns: Campaigns, caller: Caller) -> list[dict[str, Any]]:
    """Return a row for each campaign that `caller` may see."""
    rows = []
    for name in campaigns.names(caller):
        state, error = campaigns.state(name, caller)
        row = {"name": name, "state": state, "error": _shown(error), "launches": 0, "trials": 0, "complete": 0}
        row |= {"topology": None, "collective": None, "budget": None}
        with suppress(NotFound):  # it has written nothing yet
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
            if state == STORED:  # as `chorale campaign list` says it
                row["state"] = "unfinished" if snapshot.final is None else "ended"
        rows.append(row)
    return rows


@campaign_router.get("/{name}", summary="A launch, as it is now")
def campaign(
    name: Name,
    caller: CurrentCaller,
    campaigns: CurrentCampaigns,
    launch: Annotated[int | None, Query(ge=1, le=10**9, description="Number; the newest if left out.")] = None,
    after: Annotated[int, Query(ge=0, le=10**9, description="Leave out so many trials that are known.")] = 0,
) -> dict[str, Any]:
    """Return trials in the order in which they finished, and the best so far.

    `label` has the parameters of a trial in words, `reason` why it failed or was not tried. `baseline_time_us` is the
    time of the fastest baseline of the same run.
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
    """Ask the launch to end; what was measured stays, and it can be resumed."""
    note_campaign(request, name, campaigns.profile_of(name))
    campaigns.stop(name, caller)
    return {"name": name, "state": campaigns.state(name, caller)[0]}


@campaign_router.post("/{name}/resume", status_code=202, summary="Resume a campaign")
def resume(name: Name, request: Request, caller: CurrentPlanner, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Go on with the newest launch: nothing that finished is measured again."""
    note_campaign(request, *campaigns.resume(name, caller))
    return {"name": name, "state": campaigns.state(name, caller)[0]}


@campaign_router.get(
    "/{name}/trials/{trial_id}/{kind}", summary="The schedule or program of a trial", response_class=FileResponse
)
def file(
    name: Name,
    trial_id: TrialId,
    kind: FileKind,
    caller: CurrentCaller,
    campaigns: CurrentCampaigns,
) -> FileResponse:
    """Return the schedule or the program that was measured."""
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


Spec = Annotated[str, Query(max_length=4096, description="Network, as a spec.", examples=["hypercube:3"])]
Size = Annotated[int, Query(ge=1, le=2**50, description="Buffer size in bytes.")]
Alias = Annotated[str, Query(pattern=r"^[a-z][a-z0-9_-]{0,40}$", description="Which version.")]

best_router = APIRouter(prefix="/v1/best", tags=["campaigns"])


@best_router.get("", summary="The registered schedule for a network, a collective and a size")
def best(
    topology: Spec,
    collective: CollectiveText,
    size_bytes: Size,
    caller: CurrentCaller,
    campaigns: CurrentCampaigns,
    alias: Alias = "champion",
) -> Any:
    """Return the manifest of the registered version; `exact` is false if a neighbouring class of sizes answers.

    `size_range_bytes` is the range of the class, `measured` the measurement of the answer at the nearest size.
    `library` names the library's own algorithm if no program beat it: use that, without files.
    """
    return campaigns.best(topology, caller, collective, size_bytes, alias)


@best_router.get("/{kind}", summary="Its schedule or its program", response_class=Response)
def best_file(
    kind: FileKind,
    topology: Spec,
    collective: CollectiveText,
    size_bytes: Size,
    caller: CurrentCaller,
    campaigns: CurrentCampaigns,
    alias: Alias = "champion",
) -> Response:
    """Return the file; 409 if nothing is registered, nothing verifies, or the answer is the library's own algorithm."""
    content = campaigns.best(topology, caller, collective, size_bytes, alias, kind)
    name = "schedule.parquet" if kind == "schedule" else "program.xml"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)
