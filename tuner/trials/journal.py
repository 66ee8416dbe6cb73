"""The first line of a launch's journal: its identity, its campaign, and the conditions under which it measures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.redaction import redacted_document
from chorale.tuner.files.home import Home

if TYPE_CHECKING:
    from chorale.synth.topology.topology import Topology
    from chorale.tuner.config.campaign import Campaign
    from chorale.tuner.config.runner import RunnerSection


@dataclass(frozen=True, slots=True)
class Launch:
    """The first line of a launch's journal.

    launch_id:  unique to the launch; part of every trial's id, so that a trial is recorded once everywhere
    number:     counts the launches of a campaign from 1
    conditions: what must stay the same for two trials to be comparable (see `conditions_of`)
    campaign:   the resolved campaign file of the beginning of the launch
    """

    launch_id: str
    number: int
    conditions: Mapping[str, Any]
    campaign: Mapping[str, Any]
    started_unix_s: float
    format: str = "chorale-launch/1"

    def __post_init__(self) -> None:
        """Hide passwords that journals of earlier versions hold."""
        object.__setattr__(self, "campaign", redacted_document(dict(self.campaign)))


_ALWAYS_STATED: Mapping[str, Any] = {"fabric": None, "link_mbps": None, "alpha_us": 0, "link_latency_us": 0}
"""Conditions that are recorded for every runner, and their values where it has no such option."""

_ONCE_SHARED = (*_ALWAYS_STATED, "where", "msccl")
"""Options that campaigns of earlier versions had for every runner."""

launch_codec: TypeAdapter[Launch] = TypeAdapter(Launch)


def conditions_of(campaign: Campaign, topology: Topology) -> dict[str, Any]:
    """Return what makes trials comparable: network, collective, sizes, runner, baselines, repetitions."""
    weights = {} if campaign.weights is None else {"weights": list(campaign.weights)}
    return {
        **weights,
        "topology": topology.id,
        "collective": campaign.collective,
        "sizes": list(campaign.sizes),
        "runner": _runner_conditions(campaign.runner),
        "baselines": list(campaign.baseline_names),
        "repeats": campaign.repeats,
        "objective": campaign.objective,
        "overlap": campaign.overlap.products,
    }


def _runner_conditions(section: RunnerSection) -> dict[str, Any]:
    """Return what makes measurements of a runner comparable.

    Launches are compared by this, and studies are named after it, so its form must never change: the first keys are
    there for every runner, others only if they differ from their defaults.
    """
    options = section.config.conditions()
    if section.runner.is_nested:
        options = {section.kind: options}
    return {"kind": section.kind, **_ALWAYS_STATED, **options}


def stored_campaign(launch: Launch) -> dict[str, Any]:
    """Return the campaign of a launch in the form that this version reads.

    Earlier versions wrote the options of every runner for any runner; those of other runners meant nothing.
    """
    return {**launch.campaign, "runner": _without_others(launch.campaign["runner"])}


def _without_others(runner: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, or conditions, of a runner without those of other runners that earlier versions added."""
    from chorale.tuner.config.runner import read_section  # noqa: PLC0415 (it imports what every runner has for options)

    options = read_section({"kind": runner["kind"]}).model_dump()
    return {key: value for key, value in runner.items() if key in options or key not in _ONCE_SHARED}


def check_same_conditions(launch: Launch, conditions: Mapping[str, Any]) -> None:
    """Raise InvalidInput if a launch cannot go on because its trials would not compare with new ones."""
    for key, value in conditions.items():
        before = launch.conditions.get(key)
        if key == "runner" and before is not None:
            before, value = _without_others(before), _without_others(value)  # noqa: PLW2901
        if before != value:
            way_out = "undo the change, or start a new launch without --resume"
            raise InvalidInput(f"a resumed launch must keep its `{key}`", f"{value}, before {before}", way_out)


def space_id(campaign: Campaign, conditions: Mapping[str, Any]) -> str:
    """Return the content id of the search space and the conditions: one Optuna study each."""
    exact = {key: repr(value) for key, value in conditions.items()}
    return content_id({"dimensions": campaign.search.dimensions(), "conditions": exact})


def launch_folders(home: Home, name: str) -> list[Path]:
    """Return the folders of the launches of campaign `name`, oldest first."""
    folder = home.campaigns / name
    numbered = [path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit()]
    return sorted(numbered, key=lambda path: int(path.name))
