"""Routes of networks and names: a network as it would be drawn, and what requests may name."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict

from chorale.synth.methods.catalog import METHODS
from chorale.synth.targets.registry import TARGETS
from chorale.synth.topology.spec import FAMILIES, FUNCTIONS
from chorale.tuner.service.campaigns.requested import open_runners
from chorale.tuner.service.http.dependencies import CurrentCaller, CurrentCampaigns, CurrentPlanner, CurrentScheduler
from chorale.tuner.service.http.responses import CatalogView, TopologyView
from chorale.tuner.service.http.topology_view import topology_view
from chorale.tuner.service.jobs.job_specs import Network

topology_router = APIRouter(prefix="/v1", tags=["networks"])

Spec = Annotated[str, Query(max_length=4096, description="A topology spec.", examples=["torus:4x4"])]


class NetworkBody(BaseModel):
    """A network that has no spec."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topology: Network


@topology_router.get("/topologies", response_model=TopologyView, summary="A network by its spec, and its picture")
def described(
    topology: Spec, caller: CurrentPlanner, scheduler: CurrentScheduler, campaigns: CurrentCampaigns
) -> dict[str, Any]:
    """Return counts, degree and diameter; positions of nodes and links, null where it is too large to draw."""
    return scheduler.planning.call(caller.name, topology_view, topology, campaigns.limits)


@topology_router.post("/topologies", response_model=TopologyView, summary="A network from a document, and its picture")
def described_document(
    body: NetworkBody, caller: CurrentPlanner, scheduler: CurrentScheduler, campaigns: CurrentCampaigns
) -> dict[str, Any]:
    """Return what the GET returns, for a document of the format chorale-topology/1. Nothing is stored."""
    return scheduler.planning.call(caller.name, topology_view, body.topology, campaigns.limits)


@topology_router.get("/catalog", response_model=CatalogView, summary="Methods, targets, families, runners: the names")
def catalog(_caller: CurrentCaller, campaigns: CurrentCampaigns) -> dict[str, Any]:
    """Return what requests may name, and where the dashboards of MLflow, Ray and Optuna are."""
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
