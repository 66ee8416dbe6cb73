"""What replayed campaigns of a task come to: trials and seconds to the goal, and how often the answers are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from chorale.tuner.replay.campaign import ReplayedCampaign, ReplayOptions, mean_behind
from chorale.tuner.replay.tasks import GridTask
from chorale.tuner.search.prior import Prior
from chorale.tuner.statistics.contest import SizeVerdict

GOAL, WRONG = 1.05, 1.05


@dataclass(frozen=True, slots=True)
class Replay:
    """What one seed came to; shares are of the entries of the table.

    trials_mean, trials_all: until the mean over the sizes, and every size, is within 5 %; one more than all if never
    seconds, full_seconds: until the mean is, thriftily and measuring all of every trial
    final_seconds: of the comparisons at the end
    covered: share of intervals that hold the true ratio
    """

    trials_mean: float
    trials_all: float
    seconds: float
    full_seconds: float
    final_seconds: float
    wrong: float
    undecided: float
    false_wins: float
    covered: float


def replay(task: GridTask, options: ReplayOptions, seed: int, prior: Prior | None = None) -> Replay:
    """Return what one campaign on `task` comes to."""
    campaign = ReplayedCampaign(task, options, seed, prior)
    campaign.search()
    searched_s = campaign.seconds
    means = [mean_behind(behind) <= GOAL for behind in campaign.behind]
    every = [bool(np.all(behind <= GOAL)) for behind in campaign.behind]
    full = ReplayedCampaign(task, replace(options, thrifty=False), seed)
    full.search(until=GOAL)
    verdicts = campaign.verdicts()
    wrong, undecided, false_wins, covered = _judged(campaign, verdicts).mean(axis=1)
    return Replay(
        _first(means) + 1.0,
        _first(every) + 1.0,
        campaign.spent_s[min(_first(means), len(means) - 1)],
        full.seconds,
        campaign.seconds - searched_s,
        float(wrong),
        float(undecided),
        float(false_wins),
        float(covered),
    )


def _first(reached: Sequence[bool]) -> int:
    """Return the first number at which it holds, the length if it never does."""
    return next((number for number, holds in enumerate(reached) if holds), len(reached))


def _judged(campaign: ReplayedCampaign, verdicts: Sequence[SizeVerdict]) -> np.ndarray:
    """Return whether each entry is wrong, is undecided, is a false win, and has an interval that holds the truth."""
    task = campaign.task
    judged = []
    for index, verdict in enumerate(verdicts):
        library_s = task.library_s[index]
        best_s = min(library_s, task.times_s[campaign.tried, index].min())
        runs_s = library_s if verdict.name is None else task.times_s[int(verdict.name), index]
        truth = library_s / task.times_s[int(verdict.leader), index]
        judged.append(
            (
                verdict.is_decided and runs_s > WRONG * best_s,
                not verdict.is_decided,
                verdict.name is not None and runs_s >= library_s,
                verdict.speedup_low <= truth <= verdict.speedup_high,
            )
        )
    return np.array(judged, dtype=float).T
