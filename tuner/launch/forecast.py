"""How long the search of a campaign will take, by earlier launches that measured under the same conditions."""

from __future__ import annotations

import math
import statistics
from typing import Any

from chorale.synth.errors import ChoraleError
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.campaign import Campaign
from chorale.tuner.files.home import Home
from chorale.tuner.launch.progress import trial_intervals_s
from chorale.tuner.search.constraints import search_space
from chorale.tuner.trials.journal import conditions_of
from chorale.tuner.trials.open_launch import read_snapshot
from chorale.tuner.trials.store import is_begun, read_launch

NOT_KNOWN = "not known yet: no launch in this data folder measured under the same conditions"


def forecast(campaign: Campaign, topology: Topology, home: Home) -> dict[str, Any]:
    """Return the `estimate` of `chorale tune --dry-run`: how many trials there will be at most, and how long they take.

    `trial_seconds` is the mean of all launches in the data folder under the same conditions; `seconds` is that times
    the trials, at most `budget.minutes`, for the search alone. Both are None before the first such launch.
    """
    points = len(search_space(campaign, topology))
    trials = min(campaign.budget.trials, points)
    limit_s = math.inf if campaign.budget.minutes is None else 60 * campaign.budget.minutes
    stopped_by = "budget.trials" if campaign.budget.trials <= points else "the search space"
    estimate: dict[str, Any] = {"trials": trials, "seconds": None, "trial_seconds": None}
    intervals_s, launches = _earlier_trials(campaign, topology, home)
    if not intervals_s:
        suffix = "" if limit_s == math.inf else " or budget.minutes"
        return estimate | {"stopped_by": stopped_by + suffix, "basis": NOT_KNOWN}
    trial_s = statistics.fmean(intervals_s)
    return estimate | {
        "seconds": round(min(trials * trial_s, limit_s), 2),
        "trial_seconds": round(trial_s, 4),
        "stopped_by": stopped_by if trials * trial_s <= limit_s else "budget.minutes",
        "basis": f"mean of {launches} under the same conditions",
    }


def _earlier_trials(campaign: Campaign, topology: Topology, home: Home) -> tuple[list[float], str]:
    """Return the seconds from one finished trial to the next in comparable launches, and the names of these."""
    conditions = conditions_of(campaign, topology)
    intervals_s: list[float] = []
    names = []
    for folder in sorted(home.campaigns.glob("*/[0-9]*")):
        try:
            if not is_begun(folder) or read_launch(folder).conditions != conditions:
                continue
            trials = read_snapshot(folder).trials
        except (OSError, ChoraleError):  # no folder of a launch, of an older format, or damaged: it says nothing
            continue
        if trials:
            intervals_s += trial_intervals_s(trials) or [trials[0].seconds]
            names.append(f"{folder.parent.name} launch {folder.name}")
    return intervals_s, ", ".join(names)
