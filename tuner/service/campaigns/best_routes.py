"""Routes of the registry: the best schedule that campaigns have found, verified before it is given out."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response

from tuner.campaigns.size_class import SizeClass
from tuner.service.campaigns.campaigns import Campaigns
from tuner.service.http.dependencies import Known, TheCampaigns
from tuner.service.http.responses import BestView
from tuner.service.jobs.spec import CollectiveText
from tuner.tracking.best import Best, load_best
from tuner.tracking.mlflow_store import MlflowStore

Spec = Annotated[str, Query(max_length=4096, description="Network, as a spec.", examples=["hypercube:3"])]
Size = Annotated[int, Query(ge=1, le=2**50, description="Size of the whole vector.")]
Alias = Annotated[str, Query(pattern=r"^[a-z][a-z0-9_-]{0,40}$", description="Which version.")]

router = APIRouter(prefix="/v1/best", tags=["campaigns"])


@router.get("", response_model=BestView, summary="The registered schedule for a network, a collective and a size")
def best(
    topology: Spec,
    collective: CollectiveText,
    size_bytes: Size,
    _caller: Known,
    campaigns: TheCampaigns,
    alias: Alias = "champion",
) -> dict[str, Any]:
    """Return its manifest; `exact` is false where a neighbouring class of sizes answers.

    `library` names the library's own algorithm where no program beat it: that is to be run then, without files.
    """
    found = _find(campaigns, topology, collective, size_bytes, alias)
    return {
        "model": found.version.name,
        "version": found.version.version,
        "size_range_bytes": [found.size_class.min_bytes, found.size_class.max_bytes],
        "exact": found.size_class == SizeClass.of(size_bytes),
        "library": found.library,
        "measured": dict(found.measured),
        "manifest": dict(found.manifest),
    }


@router.get("/{kind}", summary="Its schedule or its program", response_class=Response)
def best_file(
    kind: Literal["schedule", "program"],
    topology: Spec,
    collective: CollectiveText,
    size_bytes: Size,
    _caller: Known,
    campaigns: TheCampaigns,
    alias: Alias = "champion",
) -> Response:
    """Return the file; 409 where there is none: nothing registered, nothing that verifies, or the library's own."""
    made = _find(campaigns, topology, collective, size_bytes, alias).program
    content, name = (made.schedule, "schedule.parquet") if kind == "schedule" else (made.program, "program.xml")
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type="application/octet-stream", headers=headers)


def _find(campaigns: Campaigns, topology: str, collective: str, size_bytes: int, alias: str) -> Best:
    network = campaigns.network(topology)
    home = campaigns.home
    return load_best(MlflowStore(home.mlflow_uri, home.artifacts), network, collective, size_bytes, alias)
