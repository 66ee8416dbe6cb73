"""Routes of fabrics under watch: their links, their tables, and who may hold them or roll them back."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from chorale.tuner.service.access import CallerRole
from chorale.tuner.service.http.dependencies import CurrentCaller, CurrentFabrics
from chorale.tuner.service.http.responses import FabricsView, FabricView

FabricName = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="Name of a watch.")]

fabric_router = APIRouter(prefix="/v1/fabrics", tags=["fabrics"])


@fabric_router.get("", response_model=FabricsView, summary="Fabrics under watch")
def watched(_caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """List fabrics whose watches write to the data folder of the service."""
    return {"fabrics": fabrics.rows()}


@fabric_router.get("/{name}", response_model=FabricView, summary="A fabric, as its watch last saw it")
def fabric(name: FabricName, _caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """Return its links with state, rate and latency, the present table, and what happened."""
    return fabrics.state(name)


@fabric_router.post("/{name}/hold", response_model=FabricView, status_code=202, summary="Publish nothing for now")
def hold(name: FabricName, caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """Keep the present table, whatever the watch plans. It takes the role operator."""
    caller.require(CallerRole.OPERATOR, "holding a fabric")
    fabrics.hold(name, True)
    return fabrics.state(name)


@fabric_router.post("/{name}/release", response_model=FabricView, status_code=202, summary="Publish again")
def release(name: FabricName, caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """End a hold: the watch plans for what it sees. It takes the role operator."""
    caller.require(CallerRole.OPERATOR, "releasing a fabric")
    fabrics.hold(name, False)
    return fabrics.state(name)


@fabric_router.post("/{name}/roll-back", response_model=FabricView, status_code=202, summary="Back to the former table")
def roll_back(name: FabricName, caller: CurrentCaller, fabrics: CurrentFabrics) -> dict[str, Any]:
    """Have the table before the present one published again, and held. It takes the role operator."""
    caller.require(CallerRole.OPERATOR, "rolling a fabric back")
    fabrics.roll_back(name)
    return fabrics.state(name)
