"""Checks campaigns requested by users of the service, launches them on the cluster, and reads their journals."""

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from chorale.runners.api.config import Exposure
from chorale.runners.api.registry import RUNNERS
from chorale.runners.ray.detached import DetachedActors
from chorale.synth import CheckFailed, InvalidInput, Topology
from chorale.tuner.config.campaign import Campaign, without_former_keys
from chorale.tuner.config.values import validated
from chorale.tuner.files.home import Home
from chorale.tuner.launch.detached import LaunchState, LaunchStatus, detached_name, start_launch
from chorale.tuner.launch.plan import RECORD, check_methods, check_runner
from chorale.tuner.service.access import Caller, CallerRole, NotFound, ServerSettings, TooManyRequests
from chorale.tuner.service.jobs.job_specs import JobLimits, NetworkPlanner
from chorale.tuner.service.jobs.job_store import JobStore
from chorale.tuner.service.views import registered
from chorale.tuner.trials.journal import launch_folders
from chorale.tuner.trials.records import CompleteTrial
from chorale.tuner.trials.store import LaunchSnapshot, read_snapshot

HIDDEN = "(set by the service)"
STORES = ("tracking.mlflow_uri", "storage")
MAX_POINTS = 10**5
"""Maximum number of points in a search space. A launch lists all points before any other limit applies."""
STORED = "stored"
"""State of a campaign that has no launch in the cluster."""


def takes_text(annotation: Any) -> bool:
    """Return whether values of this type can contain arbitrary text, as strings, paths and mappings can."""
    if get_origin(annotation) is Literal:
        return False
    if annotation in (str, bytes, Any, object, dict):
        return True
    if isinstance(annotation, type) and issubclass(annotation, Path):
        return True
    return any(takes_text(part) for part in get_args(annotation) if not isinstance(part, Exposure))


def exposure(field: FieldInfo) -> Exposure | None:
    """Return the field's `Exposure` mark, which says whether requests may set the field, or None if it has no mark."""

    def marks(parts: Iterable[Any]) -> Iterator[Exposure]:
        for part in parts:
            if isinstance(part, Exposure):
                yield part
            else:
                yield from marks(get_args(part))

    found = {*marks(field.metadata), *marks([field.annotation])}
    return found.pop() if len(found) == 1 else None


def is_closed(field: FieldInfo) -> bool:
    """Return whether requests must not set the field: its mark says so, or it has no mark and accepts any text."""
    if (mark := exposure(field)) is not None:
        return not mark.from_requests
    return takes_text(field.annotation) and not any(getattr(part, "pattern", None) for part in field.metadata)


def closed_values(section: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for each key that only the server may set and that has a value other than the default."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        key = f"{path}{field.alias or name}"
        if isinstance(value, BaseModel) and not (exposure(field) and is_closed(field)):
            yield from closed_values(value, f"{key}.")
        elif is_closed(field) and value != field.get_default(call_default_factory=True):
            yield key, value


def requested_campaign(
    document: Mapping[str, Any], settings: ServerSettings, caller: Caller, minutes: float
) -> tuple[Campaign, str | None]:
    """Return the requested campaign, with a runner profile replaced by its runner, and the profile's name or None.

    minutes: maximum search time

    Raises InvalidInput for values that are wrong or not allowed in requests, and NotPermitted if the role of `caller`
    is not sufficient for the runner.
    """
    runner = document.get("runner")
    profile = runner.get("profile") if isinstance(runner, Mapping) else None
    section = None
    if profile is not None:
        caller.require(CallerRole.OPERATOR, "a campaign on a runner of a profile")
        if isinstance(runner, Mapping) and len(runner) > 1:
            other = next(key for key in runner if key != "profile")
            rule = "a runner profile cannot be changed by {}"
            raise InvalidInput(rule, f"runner.{other}", "write only `runner: {profile: NAME}`")
        section = settings.profile(profile)
        document = {**document, "runner": section.model_dump(by_alias=True, mode="json")}
    rule = "a campaign must match the schema of `chorale tune --schema`"
    campaign = validated(Campaign, dict(document), rule, "repair this key")
    for key, _value in closed_values(campaign):  # those of the runner are allowed if they come from a profile
        if section is not None and key.startswith("runner."):
            continue
        if key in STORES:
            rule = "a campaign of the service cannot set {}"
            raise InvalidInput(rule, " or ".join(STORES), "leave both out")
        rule = "a campaign of the service cannot set {}: paths, addresses, hosts and commands are set by the service"
        way_out = f"leave out `{key}`, or use a runner that the administrator describes as a profile"
        raise InvalidInput(rule, key, way_out)
    if section is None and campaign.runner.capabilities.is_live:
        rule = "a runner that starts processes needs a profile, `runner: {profile: NAME}`"
        way_out = "choose simulated or recorded, or ask the administrator of the service for a profile"
        raise InvalidInput(rule, f"runner.kind: {campaign.runner.kind}", way_out)
    points = math.prod(len(values) for values in campaign.search.dimensions().values())
    if points > MAX_POINTS:
        rule = f"a search space must have at most {MAX_POINTS} combinations of values"
        raise InvalidInput(rule, points, "give fewer values")
    given = campaign.budget.minutes
    budget = campaign.budget.model_copy(update={"minutes": minutes if given is None else min(given, minutes)})
    return campaign.model_copy(update={"budget": budget}), None if profile is None else str(profile)


def open_runners() -> list[str]:
    """Return the kinds of runners that start no processes; requests may name these without a profile."""
    return [name for name, declared in RUNNERS.items() if not declared.capabilities.is_live]


def public_campaign(document: Mapping[str, Any], profile: str | None) -> dict[str, Any]:
    """Return a stored campaign for display. Values that only the server may set are hidden or left out."""
    document = without_former_keys(document)
    shown = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    try:
        keys = [key for key, _value in closed_values(Campaign.model_validate(document))]
    except ValidationError:  # from an earlier version: hide everything that may be private
        shown["runner"] = {"kind": dict(document.get("runner") or {}).get("kind")}
        shown["storage"], shown["tracking"] = None, {}
        keys = []
    for key in keys:
        if not key.startswith("runner."):
            *sections, last = key.split(".")
            reduce(getitem, sections, shown)[last] = HIDDEN
    if profile is not None:
        shown["runner"] = {"kind": shown["runner"]["kind"], "profile": profile}
    elif any(key.startswith("runner.") for key in keys):
        shown["runner"] = {"kind": shown["runner"]["kind"]}
    return shown


class DetachedLaunches:
    """Starts and stops launches of campaigns. Launches run as detached actors in this process's Ray cluster."""

    def start(self, campaign: Mapping[str, Any], home: Path, resume: bool) -> None:
        """Start a launch or, with `resume`, continue the newest one. Raises CheckFailed if the campaign is running."""
        with DetachedActors() as actors:
            start_launch(actors, campaign, home, resume)

    def state(self, name: str) -> tuple[str, str | None]:
        """Return the state of a campaign's launch and, if the launch failed, the error."""
        with DetachedActors() as actors:
            actor = actors.find(detached_name(name))
            if actor is None:
                return STORED, None
            status: LaunchStatus = actor.call("status", 0, timeout_s=10.0)
        return status.state.value, None if status.error is None else str(status.error)

    def stop(self, name: str) -> None:
        """Ask the launch to end soon. Raises CheckFailed if there is no launch."""
        with DetachedActors() as actors:
            actor = actors.find(detached_name(name))
            if actor is None:
                raise CheckFailed("the campaign {} is not running", name, "there is nothing to stop")
            actor.call("stop")


class Campaigns:
    """Manages the campaigns of the HTTP service. A campaign belongs to the token that launched it first."""

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

    def launch(self, document: dict[str, Any], resume: bool, caller: Caller) -> tuple[str, str]:
        """Check and launch a campaign. Return the campaign's name, and the profile or the kind of its runner.

        Raises InvalidInput if the campaign is invalid, NotPermitted if the caller may not use its runner, and
        TooManyRequests while another campaign of the caller is running.
        """
        campaign, profile, _ = self.checked(document, caller)
        self._require_own_name(campaign.name, caller)
        for name in self._store.campaigns_of(caller.name):
            if self._launches.state(name)[0] == LaunchState.RUNNING:
                raise TooManyRequests("a token may have only one running campaign", name, "wait for it, or stop it")
        self.home.create(self.home.campaigns)
        tracking = campaign.tracking.model_copy(update={"mlflow_uri": self.home.mlflow_uri})
        prior = campaign.prior
        if isinstance(prior, list) and not caller.sees_all:
            for name in set(prior) - {RECORD}:
                self._require_visible(name, caller)
        elif prior != "none" and not caller.sees_all:  # the search must not use campaigns of other users
            prior = [RECORD]
        changes = {"tracking": tracking, "prior": prior}
        resolved = campaign.model_copy(update=changes).model_dump(by_alias=True, mode="json")
        is_new = self._store.claim_campaign(campaign.name, caller.name)
        try:
            self._require_own_name(campaign.name, caller)  # another caller may have used the name first
            self._launches.start(resolved, self.home.root, resume)
        except BaseException:  # a launch that did not start must not own the name, even after an unexpected error
            if is_new:
                self._store.release_campaign(campaign.name)
            raise
        self._store.save_profile(campaign.name, profile)
        return campaign.name, profile or campaign.runner.kind

    def checked(self, document: dict[str, Any], caller: Caller) -> tuple[Campaign, str | None, Topology]:
        """Check a campaign without launching it. Return (campaign, name of the runner profile or None, network).

        Raises InvalidInput or NotPermitted if the campaign could not be launched.
        """
        campaign, profile = requested_campaign(document, self._settings, caller, self.limits.max_campaign_minutes)
        topology = self.network(campaign.topology, caller)
        check_methods(campaign)
        check_runner(campaign, topology)
        return campaign, profile, topology

    @property
    def limits(self) -> JobLimits:
        return self._networks.limits

    @property
    def profiles(self) -> list[str]:
        return list(self._settings.runners)

    @property
    def dashboards(self) -> dict[str, str | None]:
        """Return the URLs of MLflow, Ray and Optuna pages from the settings. The default for MLflow is its server."""
        named = self._settings.dashboards.model_dump()
        tracked = self.home.mlflow_uri
        if named["mlflow"] is None and tracked.startswith(("http://", "https://")) and "@" not in tracked:
            named["mlflow"] = tracked
        return named

    def network(self, spec: str, caller: Caller) -> Topology:
        return self._networks.plan(spec, caller.name)

    def best(
        self, topology: str, caller: Caller, collective: str, size_bytes: int, alias: str, kind: str | None = None
    ) -> Any:
        """Verify a registered version; return its metadata or, if `kind` is given, its schedule or program file."""
        question = (self.home, self.network(topology, caller), collective, size_bytes, alias, kind)
        return self._networks.planning.call(caller.name, registered, *question)

    def profile_of(self, name: str) -> str | None:
        return self._store.profile_of(name)

    def stop(self, name: str, caller: Caller) -> None:
        """Ask the launch of a campaign to end soon. Its measurements are kept."""
        self._require_visible(name, caller)
        self._launches.stop(name)

    def resume(self, name: str, caller: Caller) -> tuple[str, str]:
        """Resume the newest launch of a campaign; see `launch`. A runner profile is used as it is defined now."""
        document = dict(self.snapshot(name, caller).launch.campaign)
        document["tracking"] = {**document["tracking"], "mlflow_uri": None}
        profile = self.profile_of(name)
        if profile is not None:
            document["runner"] = {"profile": profile}
        return self.launch(document, True, caller)

    def names(self, caller: Caller) -> list[str]:
        folders = self.home.campaigns.glob("*") if self.home.campaigns.is_dir() else ()
        return sorted(folder.name for folder in folders if folder.is_dir() and self._sees(folder.name, caller))

    def state(self, name: str, caller: Caller) -> tuple[str, str | None]:
        """Return the state of a campaign (running, ended, failed or stored), and the reason if it failed."""
        self._require_visible(name, caller)
        return self._launches.state(name)

    def snapshot(self, name: str, caller: Caller, number: int | None = None) -> LaunchSnapshot:
        """Return launch `number` of a campaign (default: the newest). Raises NotFound if it has written nothing yet."""
        self._require_visible(name, caller)
        folders = launch_folders(self.home, name)
        chosen = [folder for folder in folders if number is None or folder.name == str(number)]
        if not chosen:
            raise NotFound("the campaign {} has not started yet", name, "wait a moment, or look at its state")
        return read_snapshot(chosen[-1])

    def file(self, name: str, trial_id: str, kind: str, caller: Caller) -> Path:
        snapshot = self.snapshot(name, caller)
        for trial in snapshot.trials:
            if trial.trial_id == trial_id and isinstance(trial, CompleteTrial):
                files = {
                    "schedule": snapshot.folder / "schedules" / f"{trial.schedule_id}.parquet",
                    "program": snapshot.folder / "programs" / f"{trial.program_id}.xml",
                }
                if files[kind].exists():
                    return files[kind]
        raise NotFound(
            f"there is no {kind} of a complete trial {{}}", trial_id, "use the `trial_id` of a complete trial"
        )

    def _sees(self, name: str, caller: Caller) -> bool:
        return caller.sees_all or self._store.campaign_owner(name) == caller.name

    def _require_visible(self, name: str, caller: Caller) -> None:
        known = self.home.campaign(name).is_dir() or self._store.campaign_owner(name) is not None
        if not (known and self._sees(name, caller)):
            raise NotFound("you have no campaign named {}", name, "list your campaigns at /v1/campaigns")

    def _require_own_name(self, name: str, caller: Caller) -> None:
        """Raise InvalidInput if a campaign of this name belongs to another user or was not launched by the service."""
        owner = self._store.campaign_owner(name)
        exists = owner is not None or self.home.campaign(name).exists() or self._launches.state(name)[0] != STORED
        if exists and owner != caller.name and not caller.sees_all:
            raise InvalidInput("a campaign named {} exists already", name, "choose another `name`")
