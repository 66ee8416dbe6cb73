"""How long a campaign will take, and what will end it."""

from __future__ import annotations

import math
from typing import Any

from synth.topology.topology import Topology
from tuner.campaigns.campaign import Campaign
from tuner.campaigns.combinations import search_space
from tuner.campaigns.final import MOST_FINALISTS
from tuner.campaigns.size_class import SizeClass
from tuner.forecast.pace import Pace, earlier_pace
from tuner.forecast.sample import sampled_pace
from tuner.forecast.span import Span
from tuner.home import Home
from tuner.promotion import REPEATS

START = Span(2.0, 30.0)
"""Starting Ray and its workers, connecting to MLflow, whose database may be new."""

END = Span(0.5, 15.0)
"""Telling MLflow the rest, pictures and report."""

_REGISTERING = Span(0.05, 1.5)
"""Of a size class."""


def forecast(campaign: Campaign, topology: Topology, home: Home) -> dict[str, Any] | None:
    """Return the `estimate` of `chorale tune --dry-run`, None where nothing is known of a trial.

    Every time is [least, most] seconds. By the newest launch that measured the same; without one, points are made
    here, which takes about `sample.PATIENCE_S` at most unless one point takes longer.
    """
    pace = earlier_pace(campaign, topology, home) or sampled_pace(campaign, topology, home)
    if pace is None:
        return None
    points = len(search_space(campaign, topology))
    wanted = min(campaign.budget.trials, points)
    limit_s = math.inf if campaign.budget.minutes is None else 60 * campaign.budget.minutes
    loop = pace.trial.times(wanted)
    stages = {
        "start": START + Span(*campaign.runner.capabilities.setup_s),
        "screening": _screening(campaign, pace, points),
        "trials": Span(min(loop.low_s, limit_s), min(loop.high_s, limit_s + campaign.parallel * pace.trial.high_s)),
        "final": _final(campaign, pace, wanted),
        "gate": _gate(campaign, pace),
        "end": END + _REGISTERING.times(_classes(campaign)),
    }
    return {
        "seconds": sum(stages.values(), Span(0.0, 0.0)).rounded,
        "trials": _trials(pace, wanted, limit_s),
        "stopped_by": _stopped_by(campaign, loop, points, limit_s),
        "trial_seconds": pace.trial.rounded,
        "stages": {name: stage.rounded for name, stage in stages.items()},
        "basis": pace.basis,
    }


def _trials(pace: Pace, wanted: int, limit_s: float) -> list[int]:
    """Return how many trials there will be at least and at most."""
    fewest = wanted if limit_s == math.inf else min(wanted, math.ceil(limit_s / pace.trial.high_s))
    most = wanted if limit_s == math.inf else min(wanted, math.ceil(limit_s / max(pace.trial.low_s, 1e-9)) + 1)
    return [fewest, most]


def _stopped_by(campaign: Campaign, loop: Span, points: int, limit_s: float) -> str:
    count = "budget.trials" if campaign.budget.trials <= points else "the search space"
    if loop.high_s <= limit_s:
        return count
    return "budget.minutes" if loop.low_s > limit_s else f"{count} or budget.minutes"


def _screening(campaign: Campaign, pace: Pace, points: int) -> Span:
    """Return the time of making the candidates that are guessed about, and of simulating the best."""
    made = min(campaign.screening.candidates, points)
    return pace.preparing.times(made / campaign.parallel, made + campaign.screening.simulated * bool(made))


def _final(campaign: Campaign, pace: Pace, trials: int) -> Span:
    """Return the time of the leaders side by side, which is that of a trial with more programs."""
    beside = len(campaign.baselines)
    least = (2 + beside) / (1 + beside) if trials > 1 else 0.0
    return pace.measuring.times(least, (MOST_FINALISTS + beside) / (1 + beside))


def _gate(campaign: Campaign, pace: Pace) -> Span:
    """Return the time of the fault tests, and of the comparisons with champions where there are any.

    Where repetitions cost time, each class repeats its winner and its champion; else a run costs what a trial does.
    """
    runs = (campaign.repeats + 1) * (1 + len(campaign.baselines))
    most = max((2 + 2 * (REPEATS + 1)) / runs, 3 * _classes(campaign) / len(campaign.sizes))
    return pace.measuring.times(1 / runs, most)


def _classes(campaign: Campaign) -> int:
    return len({SizeClass.of(size) for size in campaign.sizes})
