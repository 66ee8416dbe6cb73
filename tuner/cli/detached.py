"""`chorale tune --detach`, `--follow` and `--stop`: launches that live in a Ray cluster."""

from __future__ import annotations

import time
import uuid

from chorale.runners.ray.detached import DetachedActor, DetachedActors
from chorale.synth.errors import CheckFailed
from chorale.tuner.cli.output import people
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.files.topology_specs import absolute_spec
from chorale.tuner.launch.detached import DetachedLaunch, LaunchState, LaunchStatus, detached_name
from chorale.tuner.launch.progress import progress_display
from chorale.tuner.launch.tune import INTERRUPTED_PATIENCE_S, TuneReport

POLL_S = 1.0
STOP_PATIENCE_S = INTERRUPTED_PATIENCE_S + 15.0


def start(campaign: Campaign, resume: bool, address: str | None) -> None:
    """Let a launch live in the cluster; CheckFailed if one of this campaign is running there."""
    home = Home.from_environment()
    home.create(home.campaigns)
    # Workers have the environment and the folder of their node, not ours: what we mean is written down.
    tracking = campaign.tracking.model_copy(update={"mlflow_uri": campaign.tracking.mlflow_uri or home.mlflow_uri})
    changes = {"tracking": tracking, "topology": absolute_spec(campaign.topology)}
    document = campaign.model_copy(update=changes).model_dump(by_alias=True, mode="json")
    name = detached_name(campaign.name)
    with DetachedActors(address) as residents:
        former = residents.find(name)
        if former is not None:
            _remove_ended(former, campaign.name)
        launch_id = None if resume else uuid.uuid4().hex
        resident = residents.start(name, DetachedLaunch, (document, home.root, launch_id))
        resident.call("status", 0)
    people.print(f"launched; `chorale tune --follow {campaign.name}` watches it", markup=False, highlight=False)


def watch(campaign: str, address: str | None) -> TuneReport | None:
    """Show trials as they finish, until the launch has ended; return what came of it, or raise what ended it."""
    with DetachedActors(address) as residents:
        resident = _find(residents, campaign)
        status: LaunchStatus = resident.call("status", 0)
        with progress_display(people, status.budget) as progress:
            while True:
                for record in status.new_trials:
                    progress.trial(record)
                if status.state != LaunchState.RUNNING:
                    return _outcome(resident, status)
                time.sleep(POLL_S)
                status = resident.call("status", status.done)


def end(campaign: str, address: str | None) -> TuneReport | None:
    """End a launch and remove it from the cluster; return what came of it if it says so in time."""
    with DetachedActors(address) as residents:
        resident = _find(residents, campaign)
        resident.call("stop")
        deadline_s = time.monotonic() + STOP_PATIENCE_S
        while (status := resident.call("status", 0)).state == LaunchState.RUNNING and time.monotonic() < deadline_s:
            time.sleep(POLL_S)
        try:
            return _outcome(resident, status)
        finally:
            resident.remove()


def _remove_ended(former: DetachedActor, campaign: str) -> None:
    status: LaunchStatus = former.call("status", 0)
    if status.state == LaunchState.RUNNING:
        way_out = f"wait for it, or end it with `chorale tune --stop {campaign}`"
        raise CheckFailed("a campaign must have one detached launch", f"{campaign} is running", way_out)
    former.remove()


def _find(residents: DetachedActors, campaign: str) -> DetachedActor:
    found = residents.find(detached_name(campaign))
    if found is None:
        way_out = "start it with `chorale tune CAMPAIGN.yaml --detach`"
        raise CheckFailed("the campaign must have a detached launch in this cluster", campaign, way_out)
    return found


def _outcome(resident: DetachedActor, status: LaunchStatus) -> TuneReport | None:
    if status.error is not None:
        raise status.error
    report: TuneReport | None = resident.call("report")
    return report
