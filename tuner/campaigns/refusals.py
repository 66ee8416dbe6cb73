"""What is refused where ranks compute beside the collective: settings with which the whole takes longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chorale.runners.measurement.precision import MedianInterval, ratio_interval
from chorale.tuner.campaigns.answer import fastest_baseline
from chorale.tuner.campaigns.final import RankedTrial
from chorale.tuner.campaigns.records import CompleteTrial, SizeResult, TrialRecord


@dataclass(frozen=True, slots=True)
class Regression:
    """A trial that takes longer at a size, end to end, than the fastest baseline beside it.

    ratio: its time over the baseline's, repetition by repetition
    """

    trial: CompleteTrial
    result: SizeResult

    @property
    def baseline(self) -> str:
        return fastest_baseline(self.result)

    @property
    def ratio(self) -> MedianInterval:
        return ratio_interval(self.result.times_s, self.result.baseline_times_s[self.baseline])

    @property
    def confidence_text(self) -> str:
        """How sure it is: whether all of the ratio's interval lies above 1, or the median only."""
        return "clearly slower" if self.ratio.low > 1 else "slower in the median"


def regressions(
    campaign: Mapping[str, Any], trials: Sequence[TrialRecord], standings: Sequence[RankedTrial]
) -> list[Regression]:
    """Return what a launch of the document `campaign` refused, by size and within it the slowest first.

    Empty without work beside the collective. Where there was a final its results count. Programs are named once.
    """
    if not campaign["overlap"]["products"]:
        return []
    final = {standing.trial.trial_id: standing.sizes for standing in standings}
    own = [trial for trial in trials if isinstance(trial, CompleteTrial) and trial.same_program_as is None]
    found = [
        Regression(trial, result)
        for trial in own
        for result in final.get(trial.trial_id, trial.sizes)
        if is_slower(result)
    ]
    return sorted(found, key=lambda one: (one.result.size_bytes, one.result.speedup))


def is_slower(result: SizeResult) -> bool:
    """Whether the median is above that of the fastest baseline of the same run."""
    return result.speedup < 1
