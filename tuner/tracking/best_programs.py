"""The best program of each size class, or the baseline that nothing beats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chorale.runners.api.base import LIBRARY
from chorale.tuner.trials.records import Candidate, CompleteTrial, RankedTrial, SizeResult
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP, SizeClass


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A program by the ids of its files in the store, and what it was made of."""

    candidate: Candidate
    schedule_id: str
    program_id: str


@dataclass(frozen=True, slots=True)
class BestProgram:
    """What to run at the sizes of one class.

    trial:    the best trial of the class
    sizes:    measurements of what is to be run
    baseline: the baseline to run, as nothing beats it; None for the program of `trial`
    stored:   the program to run; None for an algorithm of the library, and for a baseline that is not built yet
    """

    size_class: SizeClass
    trial: CompleteTrial
    sizes: tuple[SizeResult, ...]
    baseline: str | None = None
    stored: StoredProgram | None = None

    @property
    def library(self) -> str | None:
        """Name of the library's algorithm, if that is to be run."""
        return library_name(self.baseline)

    @property
    def speedup(self) -> float:
        """Geometric mean over the sizes of the class."""
        return _geometric_mean([size.speedup for size in self.sizes])

    @property
    def time_us(self) -> float:
        """Geometric mean of the median times over the sizes of the class."""
        return _geometric_mean([size.median_s * 1e6 for size in self.sizes])


def best_programs(ranked: Sequence[RankedTrial], always: bool = False) -> list[BestProgram]:
    """Return the best program of each size class, by speed-up within it. Empty if there are no trials.

    As in the tuning table, a program must be clearly faster than every baseline; else it is the fastest baseline,
    unless programs are to serve `always`.
    """
    sizes = [size.size_bytes for size in ranked[0].sizes] if ranked else []
    return [
        _best_program(ranked, sizes, size_class, always)
        for size_class in sorted({SizeClass.of(size) for size in sizes})
    ]


def library_name(baseline: str | None) -> str | None:
    """Return the library's name of `baseline`, None if it is not an algorithm of the library."""
    return baseline.removeprefix(LIBRARY) if baseline is not None and baseline.startswith(LIBRARY) else None


def as_baseline(size: SizeResult, baseline: str) -> SizeResult:
    """Return the measurements of `baseline` in the form of a candidate's."""
    return replace(size, times_s=tuple(size.baseline_times_s[baseline]))


def _best_program(
    ranked: Sequence[RankedTrial], sizes: Sequence[int], size_class: SizeClass, always: bool
) -> BestProgram:
    least = 0.0 if always else MIN_SPEEDUP
    columns = [index for index, size in enumerate(sizes) if SizeClass.of(size) == size_class]
    rivals = [BestProgram(size_class, item.trial, tuple(item.sizes[index] for index in columns)) for item in ranked]
    proved = _proved(ranked, columns)
    if proved is not None and not always:
        rivals = [rival for rival in rivals if rival.trial.trial_id in proved] or rivals
        least = 0.0 if proved else math.inf
    best = max(rivals, key=lambda rival: (rival.speedup, -rival.trial.number))
    if best.speedup >= least:
        trial = best.trial
        return replace(best, stored=StoredProgram(trial.candidate, trial.schedule_id, trial.program_id))
    return min((_with_baseline(best, name) for name in best.sizes[0].baseline_times_s), key=lambda rival: rival.time_us)


def _proved(ranked: Sequence[RankedTrial], columns: Sequence[int]) -> set[str] | None:
    """Return the trials that the final comparison names at these sizes, None where there was no such comparison."""
    if not ranked or not ranked[0].verdicts:
        return None
    return {name for index in columns if (name := ranked[0].verdicts[index].name) is not None}


def _with_baseline(best: BestProgram, baseline: str) -> BestProgram:
    return replace(best, baseline=baseline, sizes=tuple(as_baseline(size, baseline) for size in best.sizes))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))
