"""How fast trials finish one after the other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from itertools import pairwise

from chorale.tuner.campaigns.records import TrialRecord

_PAUSE = 20
"""A launch was interrupted where nothing finished for so many times the median."""


def trial_intervals_s(trials: Iterable[TrialRecord]) -> list[float]:
    """Return the seconds between the ends of trials in order, without the pauses before a launch was resumed."""
    ends_s = sorted(trial.started_unix_s + trial.seconds for trial in trials)
    found_s = [later - earlier for earlier, later in pairwise(ends_s)]
    middle_s = statistics.median(found_s) if found_s else 0.0
    return [gap_s for gap_s in found_s if gap_s <= _PAUSE * middle_s]
