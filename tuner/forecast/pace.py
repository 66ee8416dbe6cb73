"""What one trial of a campaign takes, from earlier launches that measured the same."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from synth.errors import ChoraleError
from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.launch import Launch, conditions_of
from tuner.campaigns.reading import read_so_far
from tuner.campaigns.rhythm import gaps_s
from tuner.campaigns.store import is_begun, read_launch
from tuner.forecast.span import Span
from tuner.home import Home

FEWEST_TRIALS = 5
FACTOR = 1.5
"""How far the mean of a launch may be from that of the next one under the same conditions."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What one trial takes.

    trial:     from one finished trial to the next
    preparing: making and checking one program
    measuring: one measurement of a candidate beside the baselines
    basis:     where this comes from, in one line
    """

    trial: Span
    preparing: Span
    measuring: Span
    basis: str


def earlier_pace(campaign: Campaign, topology: Topology, home: Home) -> Pace | None:
    """Return the pace of the newest launch under the same conditions, None if there is none of enough trials."""
    conditions = conditions_of(campaign, topology)
    launches = [
        (launch.started_unix_s, folder) for folder, launch in _launches(home) if launch.conditions == conditions
    ]
    for _, folder in sorted(launches, reverse=True):
        found_s = gaps_s(read_so_far(folder).trials)
        if len(found_s) >= FEWEST_TRIALS - 1:
            trial = Span.around(found_s, FACTOR)
            name = f"{folder.parent.name} launch {folder.name}"
            basis = (
                f"{name} measured the same: {statistics.fmean(found_s):.3g} s a trial over {len(found_s) + 1} trials"
            )
            part = Span(0.0, trial.high_s)
            return Pace(trial, part, part, basis)
    return None


def _launches(home: Home) -> Iterator[tuple[Path, Launch]]:
    for folder in home.campaigns.glob("*/[0-9]*"):
        if folder.is_dir() and is_begun(folder):
            try:
                yield folder, read_launch(folder)
            except ChoraleError:  # of an older format, or damaged: it says nothing
                continue
