"""Progress of a launch: its display in the terminal, the pace of trials, and the time that is not spent measuring."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from chorale.runners.api.units import format_ms, format_size
from chorale.tuner.trials.records import CompleteTrial, FailedTrial, TrialRecord


class LaunchProgress:
    """Prints one line per trial: its outcome, the best so far and the time left.

    budget:  maximum number of trials, including `recorded` ones
    limit_s: seconds from the beginning of the first trial after which no new trial starts
    """

    def __init__(
        self, console: Console, budget: int, recorded: Sequence[TrialRecord] = (), limit_s: float = math.inf
    ) -> None:
        self._console = console
        self._budget = budget
        self._limit_s = limit_s
        self._trials = list(recorded)
        self._before = len(recorded)

    def trial(self, record: TrialRecord) -> None:
        """Show a trial that has just finished."""
        self._trials.append(record)
        new = self._trials[self._before :]
        passed_s = max(one.started_unix_s + one.seconds for one in new) - min(one.started_unix_s for one in new)
        left_s = passed_s / len(new) * max(0, self._budget - len(self._trials))
        left_s = min(left_s, max(0.0, self._limit_s - passed_s))
        complete = [one for one in self._trials if isinstance(one, CompleteTrial)]
        best = max(complete, key=lambda one: one.speedup, default=None)
        leader = "" if best is None else f", best {best.speedup:.2f}x {best.candidate}"
        count = f"trial {len(self._trials)}/{self._budget}, about {int(left_s // 60)}:{int(left_s % 60):02d} left"
        text = f"{record.candidate}: {outcome_text(record)}  ({count}{leader})"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def outcome_text(record: TrialRecord) -> str:
    if isinstance(record, CompleteTrial):
        times = ", ".join(f"{format_size(size.size_bytes)} {format_ms(size.median_s)}" for size in record.sizes)
        return f"{record.speedup:.2f}x ({times})"
    if isinstance(record, FailedTrial):
        return f"failed, {record.failure_kind.value}: {record.message}"
    return f"pruned: {record.reason}"


def progress_display(
    console: Console, budget: int, recorded: Sequence[TrialRecord] = (), limit_s: float = math.inf
) -> LaunchProgress:
    """Return the progress of a launch on `console`; a quiet console shows nothing."""
    return LaunchProgress(console, budget, recorded, limit_s)


@dataclass(slots=True)
class Overhead:
    """Time that a process spends on a launch.

    trials:      number of finished trials
    measuring_s: seconds that workers spent measuring trials
    elapsed_s:   from the first suggestion to the last record
    once_s:      seconds of one-time work during the first measurement, such as importing MLflow; not in `elapsed_s`
    cpu_s:       CPU time of this process from the start of the loop to the last upload
    notes:       how often the search's model failed, by the fallback that was used
    priors:      the search's priors with their final weights (`Search.priors`)
    """

    trials: int = 0
    measuring_s: float = 0.0
    elapsed_s: float = 0.0
    once_s: float = 0.0
    cpu_s: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)
    priors: list[dict[str, Any]] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the overhead in milliseconds per trial.

        `beside_measuring_ms` is the loop's time minus the measuring time, so it includes preparing and waiting; it
        can be negative if several measurements run at the same time. `cpu_ms` is this process's CPU time, which hardly
        depends on the machine's load.
        """
        per_trial = 1000 / max(1, self.trials)
        return {
            "trials": self.trials,
            "measuring_ms": round(self.measuring_s * per_trial, 3),
            "beside_measuring_ms": round((self.elapsed_s - self.measuring_s) * per_trial, 3),
            "cpu_ms": round(self.cpu_s * per_trial, 3),
            **({"notes": dict(self.notes)} if self.notes else {}),
            **({"priors": self.priors} if self.priors else {}),
        }
