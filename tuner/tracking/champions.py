"""The best program or baseline of each size class, and the rules by which a model's alias moves."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from chorale.runners.api.base import LIBRARY
from chorale.runners.measurement.precision import MedianInterval
from chorale.synth.errors import CheckFailed
from chorale.tuner.tracking.mlflow_store import MlflowStore, ModelVersion
from chorale.tuner.trials.records import Candidate, CompleteTrial, RankedTrial, SizeResult
from chorale.tuner.trials.tuning_table import MIN_SPEEDUP, SizeClass


@dataclass(frozen=True, slots=True)
class StoredProgram:
    """A program in the store: the ids of its files, and its origin."""

    candidate: Candidate
    schedule_id: str
    program_id: str


@dataclass(frozen=True, slots=True)
class BestProgram:
    """What to run at the sizes of one size class.

    trial:    the class's best trial
    sizes:    the choice's measured times
    baseline: the baseline that won; None if the program of `trial` won
    stored:   the program to run; None for a built-in library algorithm, or if the baseline is not built yet
    """

    size_class: SizeClass
    trial: CompleteTrial
    sizes: tuple[SizeResult, ...]
    baseline: str | None = None
    stored: StoredProgram | None = None

    @property
    def library(self) -> str | None:
        return library_name(self.baseline)

    @property
    def speedup(self) -> float:
        """Geometric mean of the speed-ups at the class's sizes."""
        return _geometric_mean([size.speedup for size in self.sizes])

    @property
    def time_us(self) -> float:
        """Geometric mean of the median times over the class's sizes."""
        return _geometric_mean([size.median_s * 1e6 for size in self.sizes])


def best_programs(ranked: Sequence[RankedTrial], always: bool = False) -> list[BestProgram]:
    """Return the program with the best speed-up in each size class; empty if there are no trials.

    As in the tuning table, a program must be clearly faster than every baseline; otherwise the fastest baseline is
    returned for the class, unless `always` is set.
    """
    columns: dict[SizeClass, list[int]] = {}
    for index, size in enumerate(ranked[0].sizes if ranked else ()):
        columns.setdefault(SizeClass.of(size.size_bytes), []).append(index)
    winners = []
    for size_class, indices in sorted(columns.items()):
        least = 0.0 if always else MIN_SPEEDUP
        rivals = [BestProgram(size_class, item.trial, tuple(item.sizes[index] for index in indices)) for item in ranked]
        if ranked[0].verdicts and not always:  # the final comparison has proven which trials win
            proved = {name for index in indices if (name := ranked[0].verdicts[index].name) is not None}
            rivals = [rival for rival in rivals if rival.trial.trial_id in proved] or rivals
            least = 0.0 if proved else math.inf
        best = max(rivals, key=lambda rival: (rival.speedup, -rival.trial.number))
        if best.speedup >= least:
            trial = best.trial
            best = replace(best, stored=StoredProgram(trial.candidate, trial.schedule_id, trial.program_id))
        else:
            names = best.sizes[0].baseline_times_s
            times = {name: tuple(as_baseline(size, name) for size in best.sizes) for name in names}
            baselines = [replace(best, baseline=name, sizes=sizes) for name, sizes in times.items()]
            best = min(baselines, key=lambda rival: rival.time_us)
        winners.append(best)
    return winners


def library_name(baseline: str | None) -> str | None:
    """Return the library's name for `baseline`, or None if it is not a library algorithm."""
    return baseline.removeprefix(LIBRARY) if baseline is not None and baseline.startswith(LIBRARY) else None


def as_baseline(size: SizeResult, baseline: str) -> SizeResult:
    """Return the measurements of `baseline` as if it were a candidate."""
    return replace(size, times_s=tuple(size.baseline_times_s[baseline]))


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


PROMOTION = "chorale.promotion"
REASON = "chorale.promotion_reason"
RATIO = "chorale.promotion_ratio"
ROLLED_BACK = "chorale.rolled_back"
HISTORY = "chorale.champions."
"""Tag of a model, followed by an alias: numbers of the versions that had the alias, oldest first."""
MAX_REMEMBERED = 100


@dataclass(frozen=True, slots=True)
class PromotionVerdict:
    """Whether a program may have the alias, and why.

    against: number of the version that had the alias at the time of the decision; None if there was none
    ratio:   the program's time divided by the time of version `against`, with an interval, if both were measured
    """

    promoted: bool
    reason: str
    against: str | None = None
    ratio: MedianInterval | None = None

    @property
    def tags(self) -> dict[str, str]:
        tags = {PROMOTION: "promoted" if self.promoted else "kept out", REASON: self.reason}
        tags["chorale.promotion_against"] = self.against or ""
        if self.ratio is not None:
            tags[RATIO] = f"{self.ratio.median:.3g} ({self.ratio.low:.3g} to {self.ratio.high:.3g})"
        return tags


def apply_verdict(
    mlflow: MlflowStore, version: ModelVersion, alias: str, verdict: PromotionVerdict
) -> PromotionVerdict:
    """Point `alias` to `version` if the verdict allows it. Tag the version with the final verdict; return the verdict.

    The version does not get an alias that has meanwhile moved to a version with which it was not compared.
    """
    holder = mlflow.aliased(version.name, alias)
    if holder is not None and holder.version == version.version:
        return verdict
    now = None if holder is None else holder.version
    if verdict.promoted and now != verdict.against:
        reason = f"version {now} has the alias but was not compared; use --resume to compare it"
        verdict = PromotionVerdict(False, reason, now)
    mlflow.tag_version(version, verdict.tags)
    if verdict.promoted:
        before = [] if holder is None else [*_before(mlflow, holder, alias), holder.version]
        # The order matters: after a crash in between the alias has not moved, and its history is complete.
        _remember(mlflow, version.name, alias, [*before, version.version])
        mlflow.set_alias(version, alias)
    return verdict


def roll_back(mlflow: MlflowStore, name: str, alias: str) -> tuple[ModelVersion, ModelVersion]:
    """Move `alias` back to the version that had it before. Return (version that lost it, version that has it now).

    The version that lost the alias is tagged, so that no campaign promotes it again. Raises CheckFailed if no version
    had the alias before.
    """
    holder = mlflow.aliased(name, alias)
    past = [] if holder is None else _before(mlflow, holder, alias)
    existing = {version.version: version for version in mlflow.versions(name)}
    earlier = [number for number in past if number in existing]
    if holder is None or not earlier:
        value = f"none for {name}" if holder is None else f"version {holder.version} of {name} is the first"
        raise CheckFailed("there is no earlier champion: {}", value, "keep the current one, or run a campaign")
    former = existing[earlier[-1]]
    mlflow.tag_version(holder, {ROLLED_BACK: f"to version {former.version}"})
    mlflow.set_alias(former, alias)
    _remember(mlflow, name, alias, earlier)
    return holder, former


def _before(mlflow: MlflowStore, holder: ModelVersion, alias: str) -> list[str]:
    """Return the numbers of the versions that had the alias before `holder`, oldest first."""
    past = [number for number in mlflow.model_tags(holder.name).get(f"{HISTORY}{alias}", "").split(",") if number]
    return past[: past.index(holder.version)] if holder.version in past else []


def _remember(mlflow: MlflowStore, name: str, alias: str, numbers: list[str]) -> None:
    mlflow.tag_model(name, f"{HISTORY}{alias}", ",".join(numbers[-MAX_REMEMBERED:]))
