"""The final: the best candidates once more, side by side in one run, so that luck in one trial does not win."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chorale.tuner.campaigns.records import CompleteTrial, SizeResult

BEST_OF_EACH = 2
MAX_FINALISTS = 6


@dataclass(frozen=True, slots=True)
class FinalComparison:
    """Results of the finalists by trial id, in the order of the sizes; `trials` counts the trials before it."""

    results: Mapping[str, tuple[SizeResult, ...]]
    trials: int
    state: Literal["final"] = "final"


@dataclass(frozen=True, slots=True)
class RankedTrial:
    """A trial with the results that it is ranked by: those of the final if there was one."""

    trial: CompleteTrial
    sizes: tuple[SizeResult, ...]


def finalists(trials: Sequence[CompleteTrial]) -> list[CompleteTrial]:
    """Return at most `MOST_FINALISTS` trials of different programs that lead at some size.

    At each size the highest speed-ups and the lowest times lead: the two differ when the load of the machine
    changed between trials.
    """
    own = [trial for trial in trials if trial.same_program_as is None]
    leaders: dict[str, CompleteTrial] = {}
    for place in range(BEST_OF_EACH):
        for ranking in _rankings(own):
            if place < len(ranking) and len(leaders) < MAX_FINALISTS:
                leaders[ranking[place].trial_id] = ranking[place]
    return list(leaders.values())


def ranked_trials(trials: Sequence[CompleteTrial], final: FinalComparison | None) -> list[RankedTrial]:
    """Return the trials to choose the best from: the finalists, or all if there was no final."""
    if final is None:
        return [RankedTrial(trial, trial.sizes) for trial in trials]
    return [RankedTrial(trial, final.results[trial.trial_id]) for trial in trials if trial.trial_id in final.results]


def _rankings(trials: Sequence[CompleteTrial]) -> Iterator[list[CompleteTrial]]:
    """Yield the trials in two orders for each size, the largest size first."""
    for index in reversed(range(len(trials[0].sizes) if trials else 0)):
        yield sorted(trials, key=lambda trial, index=index: -trial.sizes[index].speedup)  # type: ignore[misc]
        yield sorted(trials, key=lambda trial, index=index: trial.sizes[index].median_s)  # type: ignore[misc]
