"""One launch of a campaign: its identity, what it measures under which conditions, and where its files are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from synth.errors import InvalidInput
from synth.identity import content_id
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.runner_section import RunnerSection
from tuner.home import Home


@dataclass(frozen=True, slots=True)
class Launch:
    """The first line of a launch's journal.

    launch_id:  unique to the launch; part of every trial's id, so that a trial is recorded once everywhere
    number:     counts the launches of a campaign from 1
    conditions: what must stay the same for two trials to be comparable (see `conditions_of`)
    campaign:   the campaign file as it was resolved when the launch began
    """

    launch_id: str
    number: int
    conditions: Mapping[str, Any]
    campaign: Mapping[str, Any]
    started_unix_s: float
    format: str = "chorale-launch/1"


launch_codec: TypeAdapter[Launch] = TypeAdapter(Launch)


def conditions_of(campaign: Campaign, topology: Topology) -> dict[str, Any]:
    """Return what makes trials comparable: network, collective, sizes, runner, baselines, repetitions."""
    return {
        "topology": topology.id,
        "collective": campaign.collective,
        "sizes": list(campaign.sizes),
        "runner": _runner_conditions(campaign.runner),
        "baselines": list(campaign.baselines),
        "repeats": campaign.repeats,
        "objective": campaign.objective,
        "overlap": campaign.overlap.products,
    }


def _runner_conditions(section: RunnerSection) -> dict[str, Any]:
    """Return what makes measurements of a runner comparable; keys of other runners do not count."""
    found = section.model_dump(exclude={"timeout_s", "needs", "at_once", "where", "msccl"})
    if section.where is not None:
        found["where"] = section.where
    if section.kind == "msccl":
        found["msccl"] = section.msccl.model_dump(exclude={"shared_folder"})
    return found


def check_same_conditions(launch: Launch, conditions: Mapping[str, Any]) -> None:
    """Raise InvalidInput if a launch cannot go on because its trials would not compare with new ones."""
    for key, value in conditions.items():
        before = launch.conditions.get(key)
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
