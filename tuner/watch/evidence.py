"""When to believe that a link has changed: cumulative sums of evidence, with a bound on false alarms."""

from __future__ import annotations

import math
from dataclasses import dataclass

DAY_S = 86400.0
_EXCESS = 2.0
_MOST_EXPLAINED = 0.85


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """What is tested: how often a probe shows a symptom while all is as before, and after the change at least.

    before: upper bound of the probability of the symptom, given all earlier probes; after: the least that is looked for
    """

    before: float
    after: float

    def weight(self, has_symptom: bool, elsewhere: float = 0.0) -> float:
        """Return the logarithm of the likelihood ratio of a probe, change against no change.

        elsewhere: the part of the latest probes with the symptom on links that have nothing to do with this one. While
            nothing has changed, a link has it with a probability of twice that at most, or of `before`. What nearly all
            links have is never quite explained by that, so that a change of all is told in the end.
        """
        before = min(max(self.before, _EXCESS * elsewhere), _MOST_EXPLAINED * self.after)
        if has_symptom:
            return math.log(self.after / before)
        return math.log((1 - self.after) / (1 - before))


@dataclass(slots=True)
class Evidence:
    """Page's cumulative sum: what probes say for a change since it was least likely that there was one.

    threshold: at which the change is believed. The mean number of probes until it is reached while nothing has changed
        is at least exp(threshold) (Lorden 1971, theorem 2), whatever the probes have to do with one another, as long as
        the symptom's probability given the past stays below `hypotheses.before`, or twice what it is elsewhere: weights
        may depend on the past, since the mean of a likelihood ratio is still 1 at most.
    total: so far; probes: how many since it was zero
    """

    hypotheses: Hypotheses
    threshold: float
    total: float = 0.0
    probes: int = 0

    def add(self, has_symptom: bool, elsewhere: float = 0.0) -> bool:
        """Weigh a probe; return whether the change is believed now. elsewhere: see `Hypotheses.weight`"""
        self.total += self.hypotheses.weight(has_symptom, elsewhere)
        self.probes += 1
        if self.total <= 0:
            self.clear()
        return self.total >= self.threshold

    @property
    def is_suspicious(self) -> bool:
        """Whether the probes so far speak for a change, without being enough."""
        return self.total > 0

    def clear(self) -> None:
        """Begin again."""
        self.total, self.probes = 0.0, 0


def threshold_for(probes_per_s: float, false_alarms_per_day: float) -> float:
    """Return the threshold at which all tests together raise at most so many false alarms a day, on average.

    probes_per_s: what all tests of all links weigh in a second
    """
    return math.log(max(1.0, probes_per_s * DAY_S / false_alarms_per_day))
