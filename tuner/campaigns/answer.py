"""The answer of a campaign: what to run at which size, the baseline where nothing beats it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from chorale.tuner.campaigns.final import RankedTrial
from chorale.tuner.campaigns.records import CompleteTrial, SizeResult

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
