"""Campaigns as requests may have them: no paths, no commands, runners of machines by the name of a profile only."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from chorale.runners.api.config import Exposure
from chorale.runners.api.registry import RUNNERS
from chorale.synth.errors import InvalidInput
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.config.runner import RunnerSection
from chorale.tuner.costs.pricing import calibration_of
from chorale.tuner.service.access import Caller, CallerRole
from chorale.tuner.service.settings import ServerSettings

HIDDEN = "(set by the service)"
STORES = ("tracking.mlflow_uri", "storage")
MAX_POINTS = 10**5
"""Most combinations of values of a search space: they are counted, and listed, before anything is limited."""


def takes_text(annotation: Any) -> bool:
    """Whether values of this type may hold any text: strings, paths, mappings, anything; not lists of fixed words."""
    if get_origin(annotation) is Literal:
        return False
    if annotation in (str, bytes, Any, object) or annotation is dict:
        return True
    if isinstance(annotation, type) and issubclass(annotation, Path):
        return True
    return any(takes_text(part) for part in get_args(annotation) if not isinstance(part, Exposure))


def exposure(field: FieldInfo) -> Exposure | None:
    """Return what the field says about requests; None if it says nothing."""
    marks = [mark for mark in (*field.metadata, *_inner_marks(field.annotation)) if isinstance(mark, Exposure)]
    return marks[0] if len(set(marks)) == 1 else None


def _inner_marks(annotation: Any) -> Iterator[Any]:
    for part in get_args(annotation):
        yield part
        yield from _inner_marks(part)


def is_closed(field: FieldInfo) -> bool:
    """Whether requests may not set the field: it is marked so, or takes text without a pattern or a mark."""
    mark = exposure(field)
    if mark is not None:
        return not mark.from_requests
    return takes_text(field.annotation) and not has_pattern(field)


def has_pattern(field: FieldInfo) -> bool:
    """Whether the text of the field must match a pattern."""
    return any(getattr(part, "pattern", None) for part in field.metadata)


def closed_values(section: BaseModel, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys of `section`, sections in it included, that only the server sets, where they have a value."""
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        key = f"{path}{field.alias or name}"
        if isinstance(value, BaseModel) and not (exposure(field) and is_closed(field)):
            yield from closed_values(value, f"{key}.")
        elif is_closed(field) and value != field.get_default(call_default_factory=True):
            mark = exposure(field)
            if not (isinstance(value, dict) and mark is not None and mark.content):
                yield key, value


def requested_campaign(
    document: Mapping[str, Any], settings: ServerSettings, caller: Caller, minutes: float
) -> tuple[Campaign, str | None]:
    """Return the campaign that a request describes, its runner filled in, and the name of the profile if it has one.

    `minutes` is the longest that it may search. Raises InvalidInput for what is wrong or not for requests, and
    NotPermitted where the role of `caller` is not enough for its runner.
    """
    runner = document.get("runner")
    profile = runner.get("profile") if isinstance(runner, Mapping) else None
    if profile is None:
        campaign = read_campaign(document)
        _require_open(campaign)
        return _bounded(campaign, minutes), None
    caller.require(CallerRole.OPERATOR, "a campaign on a runner of a profile")
    if isinstance(runner, Mapping) and len(runner) > 1:
        other = next(key for key in runner if key != "profile")
        rule = "a runner of a profile is as the administrator of the service wrote it"
        raise InvalidInput(rule, f"runner.{other}", "give `runner: {profile: NAME}` and nothing beside")
    section = settings.profile(profile)
    campaign = read_campaign({**document, "runner": section.model_dump(by_alias=True, mode="json")})
    _require_open(campaign, section)
    return _bounded(campaign, minutes), str(profile)


def open_runners() -> list[str]:
    """Return the kinds of runners that a request may name: those that start no processes."""
    return [name for name, declared in RUNNERS.items() if not declared.capabilities.is_live]


def read_campaign(document: Mapping[str, Any]) -> Campaign:
    """Return the campaign; InvalidInput names the first wrong key."""
    try:
        return Campaign.model_validate(dict(document))
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        rule = "a campaign must be as `chorale tune --schema` says"
        raise InvalidInput(rule, f"{location}: {first['msg']}", "repair this key") from error


def _require_open(campaign: Campaign, profile: RunnerSection | None = None) -> None:
    """Refuse keys that only the server sets; those of the runner's section are its own where it is of a `profile`."""
    for key, _value in closed_values(campaign):
        if profile is not None and key.startswith("runner."):
            continue
        if key in STORES:
            rule = "a campaign of the service is tracked and stored where the service says"
            raise InvalidInput(rule, " or ".join(STORES), "leave both out")
        rule = "a campaign of the service has no paths, addresses, hosts or commands; the service sets them"
        raise InvalidInput(
            rule, key, f"leave out `{key}`, or use a runner that the administrator describes as a profile"
        )
    if profile is None and campaign.runner.capabilities.is_live:
        rule = "a runner that starts processes must be that of a profile: `runner: {profile: NAME}`"
        way_out = "choose simulated or recorded, or ask the administrator of the service for a profile"
        raise InvalidInput(rule, f"runner.kind: {campaign.runner.kind}", way_out)
    if isinstance(campaign.screening.calibration, dict):
        calibration_of(campaign.screening.calibration)
    points = math.prod(len(values) for values in campaign.search.dimensions().values())
    if points > MAX_POINTS:
        rule = f"a search space must have at most {MAX_POINTS} combinations of values"
        raise InvalidInput(rule, points, "give fewer values")


def _bounded(campaign: Campaign, minutes: float) -> Campaign:
    given = campaign.budget.minutes
    budget = campaign.budget.model_copy(update={"minutes": minutes if given is None else min(given, minutes)})
    return campaign.model_copy(update={"budget": budget})


def public_campaign(document: Mapping[str, Any], profile: str | None) -> dict[str, Any]:
    """Return a stored campaign as callers may see it: what the server has set is hidden, a profile is named."""
    shown = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    try:
        keys = [key for key, _value in closed_values(Campaign.model_validate(dict(document)))]
    except ValidationError:  # of an earlier version: shown without what might hide something
        shown["runner"] = {"kind": dict(document.get("runner") or {}).get("kind")}
        shown["storage"], shown["tracking"], shown["screening"] = None, {}, {}
        keys = []
    for key in keys:
        if not key.startswith("runner."):
            _hide(shown, key.split("."))
    if profile is not None:
        shown["runner"] = {"kind": shown["runner"]["kind"], "profile": profile}
    elif any(key.startswith("runner.") for key in keys):
        shown["runner"] = {"kind": shown["runner"]["kind"]}
    return shown


def _hide(document: dict[str, Any], path: list[str]) -> None:
    for part in path[:-1]:
        document = document[part]
    document[path[-1]] = HIDDEN
