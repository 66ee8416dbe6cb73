"""From what a workshop answered to the record of a trial."""

from __future__ import annotations

from dataclasses import dataclass

from runners.api import FailureKind, Measurement, Outcome, RunFailure
from runners.preparation import Prepared, Refusal, RefusalKind
from tuner.campaigns.orders import BASELINE, LIBRARY
from tuner.campaigns.records import Candidate, CompleteTrial, FailedTrial, PrunedTrial, SizeResult, TrialRecord, run_key
from tuner.campaigns.search import Suggestion


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A trial that was asked for and is not finished."""

    suggestion: Suggestion
    trial_id: str
    number: int
    started_s: float
    started_unix_s: float
    prepared: Prepared | None = None

    @property
    def run_key(self) -> str:
        """See `run_key`; only of a trial that has been prepared."""
        return run_key(self.prepared.program_id if self.prepared else "", self.suggestion.candidate)

    def pruned(self, now_s: float, reason: str) -> PrunedTrial:
        """Return the record of a candidate that makes no sense."""
        return PrunedTrial(*self._facts(now_s), reason)

    def refused(self, now_s: float, refusal: Refusal) -> TrialRecord:
        """Return the record of a candidate that gave no program."""
        if refusal.kind == RefusalKind.INVALID:
            return self.pruned(now_s, refusal.message)
        kind = FailureKind.WRONG_RESULT if refusal.kind == RefusalKind.UNSOUND else FailureKind.CRASH
        return FailedTrial(*self._facts(now_s), kind, refusal.message)

    def shared(self, now_s: float, known: CompleteTrial) -> CompleteTrial:
        """Return the record of a candidate whose program `known` has measured."""
        measured = (known.schedule_id, known.program_id, known.sizes, known.environment)
        return CompleteTrial(*self._facts(now_s), *measured, known.trial_id, known.channels, known.blocks)

    def measured(self, now_s: float, prepared: Prepared, outcome: Outcome) -> TrialRecord:
        """Return the record of a candidate that was run."""
        facts = self._facts(now_s)
        if isinstance(outcome, RunFailure):
            return FailedTrial(*facts, outcome.kind, outcome.message, dict(outcome.environment))
        identity = (prepared.schedule_id, prepared.program_id)
        sizes = size_results(outcome, self.trial_id)
        program = prepared.program
        blocks = max(len(rank.blocks) for rank in program.ranks)
        environment = dict(outcome.environment)
        return CompleteTrial(*facts, *identity, sizes, environment, None, program.channels, blocks)

    def _facts(self, now_s: float) -> tuple[str, int, Candidate, float, float]:
        """Return the fields that every record begins with."""
        seconds = now_s - self.started_s
        return self.trial_id, self.number, self.suggestion.candidate, self.started_unix_s, seconds


def size_results(measurement: Measurement, candidate: str) -> tuple[SizeResult, ...]:
    """Return the results of one program of a measurement beside those of the baselines."""
    baselines = {
        name.removeprefix(BASELINE): results
        for name, results in measurement.results.items()
        if name.startswith((BASELINE, LIBRARY))
    }
    return tuple(
        SizeResult(
            size_bytes=size.requested_bytes,
            measured_bytes=size.size_bytes,
            times_s=size.times_s,
            baseline_times_s={name: results[index].times_s for name, results in baselines.items()},
        )
        for index, size in enumerate(measurement.results[candidate])
    )
