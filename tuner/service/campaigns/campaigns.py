"""Campaigns of the service: launched into the cluster, watched through their journals."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chorale.runners.ray.detached import DetachedActor, DetachedActors
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.launch.detached import DetachedLaunch, LaunchState, LaunchStatus, detached_name
from chorale.tuner.launch.plan import check_methods, check_runner
from chorale.tuner.launch.priors import RECORD, SCREENING
from chorale.tuner.service.access import Caller, NotFound, TooManyRequests
from chorale.tuner.service.campaigns.registered import registered, trial_importances
from chorale.tuner.service.campaigns.requested import requested_campaign
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.jobs.limits import JobLimits, NetworkPlanner
from chorale.tuner.service.settings import ServerSettings
from chorale.tuner.trials.journal import launch_folders, stored_campaign
from chorale.tuner.trials.records import CompleteTrial
from chorale.tuner.trials.store import LaunchSnapshot, read_snapshot

STORED = "stored"
"""State of a campaign without a launch in the cluster."""


@dataclass(frozen=True, slots=True)
class Launched:
    """What was launched. runner: its profile, or its kind."""

    name: str
    runner: str


class DetachedLaunches:
    """Launches of campaigns: detached actors in the Ray cluster that this process is part of."""

    def start(self, campaign: Mapping[str, Any], home: Path, launch_id: str | None) -> None:
        """Begin a launch, or with None go on with the newest; CheckFailed while one is running."""
        name = detached_name(campaign["name"])
        with DetachedActors() as actors:
            former = actors.find(name)
            if former is not None:
                if _status(former).state == LaunchState.RUNNING:
                    raise CheckFailed("a campaign must have one launch at a time", campaign["name"], "stop it first")
                former.remove()
            actors.start(name, DetachedLaunch, (campaign, home, launch_id)).call("status", 0)

    def state(self, name: str) -> tuple[str, str | None]:
        """Return the state of a campaign's launch, and what ended it if it failed."""
        with DetachedActors() as actors:
            actor = actors.find(detached_name(name))
            if actor is None:
                return STORED, None
            status = _status(actor)
        return status.state.value, None if status.error is None else str(status.error)

    def stop(self, name: str) -> None:
        """Ask the launch to end; CheckFailed if there is none."""
        with DetachedActors() as actors:
            actor = actors.find(detached_name(name))
            if actor is None:
                raise CheckFailed("a campaign must be running to be stopped", name, "leave it")
            actor.call("stop")


class Campaigns:
    """The campaigns of the service, as routes use them; every campaign belongs to the token that launched it first."""

    def __init__(
        self,
        home: Home,
        launches: DetachedLaunches,
        store: JobStore,
        networks: NetworkPlanner,
        settings: ServerSettings | None = None,
    ) -> None:
        self.home = home
        self._settings = settings or ServerSettings()
        self._launches = launches
        self._store = store
        self._networks = networks

    def launch(self, document: dict[str, Any], resume: bool, caller: Caller) -> Launched:
        """Check a campaign and launch it; return its name and its runner.

        Raises InvalidInput for what is wrong with it, NotPermitted where the caller may not have its runner, and
        TooManyRequests while another campaign of the caller runs.
        """
        campaign, profile, _ = self.checked(document, caller)
        owner = self._store.campaign_owner(campaign.name)
        if owner not in (None, caller.name) and not caller.sees_all:
            raise InvalidInput("a campaign must have a name of its own", campaign.name, "choose another `name`")
        self._require_idle(caller)
        self._store.claim_campaign(campaign.name, caller.name)
        self._store.save_profile(campaign.name, profile)
        self.home.create(self.home.campaigns)
        tracking = campaign.tracking.model_copy(update={"mlflow_uri": self.home.mlflow_uri})
        changes = {"tracking": tracking, "prior": self._visible_prior(campaign.prior, caller)}
        resolved = campaign.model_copy(update=changes).model_dump(by_alias=True, mode="json")
        self._launches.start(resolved, self.home.root, None if resume else uuid.uuid4().hex)
        return Launched(campaign.name, profile or campaign.runner.kind)

    def checked(self, document: dict[str, Any], caller: Caller) -> tuple[Campaign, str | None, Topology]:
        """Return the campaign, the profile of its runner, if it has one, and its network.

        InvalidInput or NotPermitted where it could not be launched.
        """
        campaign, profile = requested_campaign(document, self._settings, caller, self.limits.campaign_minutes)
        topology = self.network(campaign.topology, caller)
        check_methods(campaign)
        check_runner(campaign, topology)
        return campaign, profile, topology

    def importances(self, name: str, caller: Caller) -> dict[str, float]:
        """Return how much each parameter decided in the newest launch; see `chorale.tuner.search.study`."""
        trials = [trial for trial in self.snapshot(name, caller).trials if isinstance(trial, CompleteTrial)]
        return self._networks.planning.call(caller.name, trial_importances, trials)

    @property
    def limits(self) -> JobLimits:
        """The most that a request may ask for."""
        return self._networks.limits

    @property
    def profiles(self) -> list[str]:
        """The names of runners that an administrator has described."""
        return list(self._settings.runners)

    @property
    def dashboards(self) -> dict[str, str | None]:
        """Where the pages of MLflow, Ray and Optuna are, as far as the settings or the address of MLflow say so."""
        named = self._settings.dashboards.model_dump()
        tracked = self.home.mlflow_uri
        if named["mlflow"] is None and tracked.startswith(("http://", "https://")) and "@" not in tracked:
            named["mlflow"] = tracked
        return named

    def network(self, spec: str, caller: Caller) -> Topology:
        """Return the network of a spec within the limits of the service."""
        return self._networks.plan(spec, caller.name).topology

    def best(
        self, spec: str, caller: Caller, collective: str, size_bytes: int, alias: str, kind: str | None = None
    ) -> Any:
        """Return what the registry has: the facts of the entry, or one of its files, verified within the limits."""
        topology = self.network(spec, caller)
        question = (self.home, topology, collective, size_bytes, alias, kind)
        return self._networks.planning.call(caller.name, registered, *question)

    def profile_of(self, name: str) -> str | None:
        """Return the profile of a campaign's runner."""
        return self._store.profile_of(name)

    def stop(self, name: str, caller: Caller) -> None:
        """Ask a launch to end; what was measured stays."""
        self._require_visible(name, caller)
        self._launches.stop(name)

    def resume(self, name: str, caller: Caller) -> Launched:
        """Go on with the newest launch of a campaign, its runner as the profile is now."""
        document = stored_campaign(self.snapshot(name, caller).launch)
        document["tracking"] = {**document["tracking"], "mlflow_uri": None}
        profile = self.profile_of(name)
        if profile is not None:
            document["runner"] = {"profile": profile}
        return self.launch(document, True, caller)

    def names(self, caller: Caller) -> list[str]:
        """Return the campaigns that the caller may see, by name."""
        folders = self.home.campaigns.glob("*") if self.home.campaigns.is_dir() else ()
        return sorted(folder.name for folder in folders if folder.is_dir() and self._sees(folder.name, caller))

    def state(self, name: str, caller: Caller) -> tuple[str, str | None]:
        """Return running, ended, failed or stored, and the reason of a failure."""
        self._require_visible(name, caller)
        return self._launches.state(name)

    def snapshot(self, name: str, caller: Caller, number: int | None = None) -> LaunchSnapshot:
        """Return the newest launch, or the one of that number. NotFound if it has written nothing."""
        self._require_visible(name, caller)
        folders = launch_folders(self.home, name)
        chosen = [folder for folder in folders if number is None or folder.name == str(number)]
        if not chosen:
            raise NotFound("a launch must have begun", name, "wait a moment, or look at the state of the campaign")
        return read_snapshot(chosen[-1])

    def file(self, name: str, trial_id: str, kind: str, caller: Caller) -> Path:
        """Return the path of the schedule or the program of a complete trial."""
        snapshot = self.snapshot(name, caller)
        for trial in snapshot.trials:
            if trial.trial_id == trial_id and isinstance(trial, CompleteTrial):
                files = {
                    "schedule": snapshot.folder / "schedules" / f"{trial.schedule_id}.parquet",
                    "program": snapshot.folder / "programs" / f"{trial.program_id}.xml",
                }
                if files[kind].exists():
                    return files[kind]
        raise NotFound(f"a {kind} must be that of a complete trial", trial_id, "take `trial_id` of a complete trial")

    def _visible_prior(self, prior: str | list[str], caller: Caller) -> str | list[str]:
        """Return what a campaign may learn from: nothing of campaigns that the caller may not see."""
        if caller.sees_all or prior == "none":
            return prior
        if isinstance(prior, str):
            return [RECORD, SCREENING]
        for name in set(prior) - {RECORD, SCREENING}:
            self._require_visible(name, caller)
        return prior

    def _sees(self, name: str, caller: Caller) -> bool:
        return caller.sees_all or self._store.campaign_owner(name) == caller.name

    def _require_visible(self, name: str, caller: Caller) -> None:
        if not self._sees(name, caller) or not (
            (self.home.campaigns / name).is_dir() or self._store.campaign_owner(name) is not None
        ):
            raise NotFound("a campaign must be there", name, "list your campaigns at /v1/campaigns")

    def _require_idle(self, caller: Caller) -> None:
        for name in self._store.campaigns_of(caller.name):
            if self._launches.state(name)[0] == LaunchState.RUNNING:
                raise TooManyRequests("a token may have one campaign running", name, "wait for it, or stop it")


def _status(actor: DetachedActor) -> LaunchStatus:
    status: LaunchStatus = actor.call("status", 0, timeout_s=10.0)
    return status
