"""Size classes: one best schedule per power of two of the vector's bytes.

The answer of a campaign: what to run at which size, the baseline where nothing beats it.

The answer of a campaign as program files, each for its range of sizes.

What is refused where ranks compute beside the collective: settings with which the whole takes longer.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from chorale.runners.api.units import format_size
from chorale.runners.measurement.precision import MedianInterval, ratio_interval
from chorale.synth.targets.lift import lift
from chorale.synth.targets.registry import target_named
from chorale.tuner.trials.records import CompleteTrial, RankedTrial, SizeResult, TrialRecord


@dataclass(frozen=True, slots=True, order=True)
class SizeClass:
    """Vectors of 2^exponent to 2^(exponent + 1) - 1 bytes."""

    exponent: int

    @staticmethod
    def of(size_bytes: int) -> SizeClass:
        """Return the class that `size_bytes` (at least 1) belongs to."""
        return SizeClass(size_bytes.bit_length() - 1)

    @property
    def min_bytes(self) -> int:
        return 1 << self.exponent

    @property
    def max_bytes(self) -> int:
        return (2 << self.exponent) - 1

    def distance(self, other: SizeClass) -> int:
        """Return how many powers of two lie between."""
        return abs(self.exponent - other.exponent)

    def __str__(self) -> str:
        return format_size(self.min_bytes)


MIN_SPEEDUP = 1.02
"""What a program must reach over the fastest baseline to be chosen: closer is a tie, and a tie is the baseline's."""


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What to run at a size: the program of `trial`, or as it is None the baseline called `baseline`.

    result: what was measured of the trial, or of the one that came closest to the baseline
    """

    size_bytes: int
    trial: CompleteTrial | None
    baseline: str
    result: SizeResult

    @property
    def time_s(self) -> float:
        """Median time of what is to be run."""
        return self.result.baseline_median_s if self.trial is None else self.result.median_s

    @property
    def speedup(self) -> float:
        """Over the fastest baseline of the same run; 1 where that is to be run, never less."""
        return 1.0 if self.trial is None else self.result.speedup


@dataclass(frozen=True, slots=True)
class TableRange:
    """Sizes from `first_bytes` to `last_bytes`, both included (None: without end), for which `choice` was made.

    Between two measured sizes with different answers the smaller one's holds up to the larger one.
    """

    first_bytes: int
    last_bytes: int | None
    entry: TableEntry


def tuning_table(standings: Sequence[RankedTrial], together: bool) -> list[TableEntry]:
    """Return the choice at each size, in the order of the sizes; none without standings.

    together: whether one trial, the best by geometric mean, is to serve all sizes where it beats the baselines.
    """
    if not standings:
        return []
    rivals = eligible(standings, together)
    return [_choice(rivals, index) for index in range(len(standings[0].sizes))]


def eligible(standings: Sequence[RankedTrial], together: bool) -> list[RankedTrial]:
    """Return who may be chosen at a size: all, or the best by geometric mean where one is to serve all sizes."""
    if not together or not standings:
        return list(standings)
    return [max(standings, key=lambda standing: (_mean_speedup(standing), -standing.trial.number))]


def table_ranges(chosen: Sequence[TableEntry]) -> list[TableRange]:
    """Return the answer for every size: neighbouring sizes with the same choice together, from 1 byte on."""
    starts = [index for index in range(len(chosen)) if index == 0 or not _same(chosen[index - 1], chosen[index])]
    firsts = [1 if index == 0 else chosen[index].size_bytes for index in starts]
    ranges = [TableRange(first, None, chosen[index]) for first, index in zip(firsts, starts, strict=True)]
    return [replace(one, last_bytes=after.first_bytes - 1) for one, after in pairwise(ranges)] + ranges[-1:]


def fastest_baseline(result: SizeResult) -> str:
    """Return the name of the fastest baseline of a run."""
    return min(result.baseline_times_s, key=lambda name: statistics.median(result.baseline_times_s[name]))


def _choice(rivals: Sequence[RankedTrial], index: int) -> TableEntry:
    # Among equals the earlier trial wins, as in the registry.
    best = max(rivals, key=lambda place: (place.sizes[index].speedup, -place.trial.number))
    result = best.sizes[index]
    return TableEntry(
        result.size_bytes, best.trial if result.speedup >= MIN_SPEEDUP else None, fastest_baseline(result), result
    )


def _same(one: TableEntry, other: TableEntry) -> bool:
    if one.trial is None or other.trial is None:
        return one.trial is other.trial and one.baseline == other.baseline
    return one.trial.trial_id == other.trial.trial_id


def _mean_speedup(standing: RankedTrial) -> float:
    return math.exp(statistics.fmean(math.log(size.speedup) for size in standing.sizes))


def table_programs(chosen: Sequence[TableEntry], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """Return a program for every range of sizes that one serves, by the name of its file; names sort by size.

    chosen: the answer at each size, sizes ascending
    read:   program id -> its text, as it was measured

    A program says which sizes it is for, so that the runtime's own algorithm serves ranges of a baseline, and what is
    below or above all sizes that were measured.
    """
    if not chosen:
        return {}
    smallest, largest = chosen[0].size_bytes, max(choice.result.measured_bytes for choice in chosen)
    files = {}
    for number, one in enumerate(table_ranges(chosen), 1):
        if one.entry.trial is None:
            continue
        program = lift(read(one.entry.trial.program_id))
        first = max(one.first_bytes, smallest)
        last = largest if one.last_bytes is None else one.last_bytes
        text = target_named(program.target).emit(replace(program, min_bytes=first, max_bytes=last))
        files[f"{number:02d}-{first}-{last}.xml"] = text.encode()
    return files


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
