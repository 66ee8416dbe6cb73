"""Pending trials, how results of workers become their records, and on which nodes they were measured."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure
from chorale.synth.build.request import BuildFailure, BuildFailureKind, BuildResult
from chorale.tuner.search.search import Suggestion
from chorale.tuner.statistics.controls import BaselineTimes, Controls
from chorale.tuner.trials.records import (
    Candidate,
    CompleteTrial,
    FailedTrial,
    PrunedTrial,
    SizeResult,
    TrialRecord,
    run_key,
)

_NO_WEIGHTS: Mapping[int, float] = {}
_NO_TIMES: BaselineTimes = {}


@dataclass(frozen=True, slots=True)
class PendingTrial:
    """A trial that has begun and has no record yet."""

    suggestion: Suggestion
    trial_id: str
    number: int
    started_s: float
    started_unix_s: float

    @property
    def candidate(self) -> Candidate:
        return self.suggestion.candidate

    def not_built(self, now_s: float, failure: BuildFailure) -> TrialRecord:
        """Return the record of a candidate that could not be built: pruned if it makes no sense."""
        if failure.kind == BuildFailureKind.INVALID:
            return PrunedTrial(*self._facts(now_s), failure.message)
        kind = FailureKind.WRONG_RESULT if failure.kind == BuildFailureKind.UNSOUND else FailureKind.CRASH
        return FailedTrial(*self._facts(now_s), kind, failure.message)

    def duplicate(self, now_s: float, first: CompleteTrial) -> CompleteTrial:
        """Return the record of a candidate whose program was measured in the trial `first`."""
        measured = (first.schedule_id, first.program_id, first.sizes, first.environment)
        return CompleteTrial(*self._facts(now_s), *measured, first.trial_id, first.channels, first.blocks)

    def _facts(self, now_s: float) -> tuple[str, int, Candidate, float, float]:
        """Return the fields that every record begins with."""
        return self.trial_id, self.number, self.candidate, self.started_unix_s, now_s - self.started_s


@dataclass(frozen=True, slots=True)
class BuiltTrial(PendingTrial):
    """A pending trial whose program is built.

    beside: whether the baselines are measured with it
    so_far: what was measured, of a trial whose sizes are measured one after the other
    """

    built: BuildResult
    beside: bool = True
    so_far: Measurement | None = None

    @staticmethod
    def of(trial: PendingTrial, built: BuildResult) -> BuiltTrial:
        facts = trial.suggestion, trial.trial_id, trial.number, trial.started_s, trial.started_unix_s
        return BuiltTrial(*facts, built)

    @property
    def run_key(self) -> str:
        """Trials with equal keys share a measurement."""
        return run_key(self.built.program_id, self.candidate)

    @property
    def sizes_done(self) -> int:
        """How many sizes were measured."""
        return 0 if self.so_far is None else len(self.so_far.results[self.trial_id])

    def with_more(self, measurement: Measurement) -> BuiltTrial:
        """Return the trial after the next size was measured."""
        if self.so_far is None:
            return replace(self, so_far=measurement)
        results = {name: (*sizes, *measurement.results[name]) for name, sizes in self.so_far.results.items()}
        return replace(self, so_far=replace(measurement, results=results))

    def pruned(self, now_s: float, reason: str, sizes: tuple[SizeResult, ...] = ()) -> PrunedTrial:
        """Return the record of a candidate that a pruner ended after `sizes`; none where another trial has them."""
        return PrunedTrial(*self._facts(now_s), reason, sizes, self.built.program_id)

    def measured(
        self,
        now_s: float,
        outcome: Outcome,
        references: Mapping[str, str],
        weights: Mapping[int, float] = _NO_WEIGHTS,
        earlier: BaselineTimes = _NO_TIMES,
    ) -> TrialRecord:
        """Return the record of a candidate that was run, see `size_results`."""
        facts = self._facts(now_s)
        if isinstance(outcome, RunFailure):
            return FailedTrial(*facts, outcome.kind, outcome.message, dict(outcome.environment))
        sizes = size_results(outcome, self.trial_id, references, weights, earlier)
        program = self.built.program
        blocks = max(len(rank.blocks) for rank in program.ranks)
        identity = (self.built.schedule_id, self.built.program_id)
        return CompleteTrial(*facts, *identity, sizes, dict(outcome.environment), None, program.channels, blocks)


def size_results(
    measurement: Measurement,
    name: str,
    references: Mapping[str, str],
    weights: Mapping[int, float] = _NO_WEIGHTS,
    earlier: BaselineTimes = _NO_TIMES,
) -> tuple[SizeResult, ...]:
    """Return the results of the program called `name` with those of the baselines.

    references: the name of every baseline in the measurement -> its name in records
    weights:    of sizes in bytes that do not weigh 1
    earlier:    times of the baselines in earlier measurements, which count if there are none in this
    """
    beside = baseline_times(measurement, references)
    baselines = beside or earlier
    return tuple(
        SizeResult(
            size_bytes=size.requested_bytes,
            measured_bytes=size.size_bytes,
            times_s=size.times_s,
            baseline_times_s={baseline: times[index] for baseline, times in baselines.items()},
            weight=weights.get(size.requested_bytes, 1.0),
            beside=bool(beside),
        )
        for index, size in enumerate(measurement.results[name])
    )


def baseline_times(measurement: Measurement, references: Mapping[str, str]) -> BaselineTimes:
    """Return the seconds of the baselines in `measurement` by their names in records, empty where it has none."""
    return {
        references[name]: tuple(size.times_s for size in sizes)
        for name, sizes in measurement.results.items()
        if name in references
    }


def controls_of(trials: Iterable[TrialRecord]) -> Controls:
    """Return what the baselines of a launch said so far, in the order of its trials."""
    controls = Controls()
    measured = [trial for trial in trials if isinstance(trial, CompleteTrial) and trial.same_program_as is None]
    for count, trial in enumerate(measured):
        if trial.sizes[0].beside:
            names = trial.sizes[0].baseline_times_s
            controls.add({name: tuple(size.baseline_times_s[name] for size in trial.sizes) for name in names}, count)
    return controls


NODES = "nodes"
_log = logging.getLogger("chorale.controller")


class NodeWatch:
    """Knows on which nodes the last trial of a launch was measured, where its runner says so.

    is_off: where several workers measure at once, each on nodes of its own
    """

    def __init__(self, trials: Iterable[TrialRecord], is_off: bool = False) -> None:
        measured = [trial.environment.get(NODES) for trial in trials if isinstance(trial, CompleteTrial)]
        self._nodes = measured[-1] if measured else None
        self._is_off = is_off

    def have_changed(self, environment: Mapping[str, Any]) -> bool:
        """Take note of the nodes of a measurement; return, with a warning, whether the one before had others."""
        nodes, before = environment.get(NODES), self._nodes
        if nodes is None or self._is_off:
            return False
        self._nodes = nodes
        if before is None or before == nodes:
            return False
        _log.warning("measured on %s, before on %s: the baselines are measured again there", nodes, before)
        return True
