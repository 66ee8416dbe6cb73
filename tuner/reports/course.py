"""How soon a search was where it ended: trials and seconds to within some percent of its best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chorale.tuner.trials.records import CompleteTrial, TrialRecord

NEAR = 0.05


@dataclass(frozen=True, slots=True)
class Approach:
    """Trials and seconds until what was known was, in the mean over sizes, within `NEAR` of the best of all trials."""

    trials: int
    seconds: float


def approach(trials: Sequence[TrialRecord]) -> Approach | None:
    """Return how soon a search was near its best, None if nothing was measured.

    By the trials' own results: the baselines are known from the start, and the best of each size counts. Seconds are
    those in which a trial was under way, so that pauses of a resumed launch do not count.
    """
    complete = [trial for trial in trials if isinstance(trial, CompleteTrial)]
    if not complete:
        return None
    weights = [size.weight for size in complete[0].sizes]
    gains = np.array([[max(math.log(size.speedup), 0.0) for size in trial.sizes] for trial in complete])
    best = np.average(np.maximum.accumulate(gains), axis=1, weights=weights)
    first = complete[int(np.argmax(best >= best[-1] - math.log1p(NEAR)))]
    before = [trial for trial in trials if _end(trial) <= _end(first)]
    return Approach(len(before), _busy_s(before))


def _end(trial: TrialRecord) -> float:
    return trial.started_unix_s + trial.seconds


def _busy_s(trials: Sequence[TrialRecord]) -> float:
    """Return the length of the union of the times in which the trials were under way."""
    busy, until = 0.0, -math.inf
    for trial in sorted(trials, key=lambda trial: trial.started_unix_s):
        busy += max(0.0, _end(trial) - max(until, trial.started_unix_s))
        until = max(until, _end(trial))
    return busy
