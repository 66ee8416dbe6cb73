"""The overhead of a launch: what it costs besides measuring, by stage and per trial."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

SEARCH, ORDER, SAVE, SHOW = "search", "order", "save", "show"
MEASURING, PREPARING = "measuring", "preparing"


STARTING, SEARCHING, FINAL, PROMOTION, REPORTING = "starting", "search", "final", "promotion", "reporting"
PHASES = (STARTING, SEARCHING, FINAL, PROMOTION, REPORTING)
"""Parts of a launch in their order: workers, baselines and screening; trials; the comparison of the best; the gate;
uploading, registering and the report."""


@dataclass(slots=True)
class Overhead:
    """Adds up what one process spends on a launch.

    trials:    number of finished trials.
    seconds:   stage -> seconds of the loop in it: asking and telling the `search`, submitting to workers (`order`),
               saving to disk (`save`), telling listeners (`show`).
    worked_s:  kind of work -> seconds that it took workers; `worked_cpu_s` their CPU time.
    elapsed_s: from the first suggestion to the last record.
    notes:     what stood in for the model of the search when it broke down, and how often.
    once_s:    what one call beside the first measurement took, such as importing MLflow; `elapsed_s` is without it.
    phases_s:  seconds of each part of the launch, see `PHASES`.
    priors:    what the search knew beforehand, and how far it is believed in the end (`Search.priors`).
    cpu_s:     CPU time of this process from the start of the loop to the last upload.
    """

    clock: Callable[[], float]
    trials: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    worked_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    worked_cpu_s: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    elapsed_s: float = 0.0
    once_s: float = 0.0
    cpu_s: float = 0.0
    notes: dict[str, int] = field(default_factory=dict)
    priors: list[dict[str, Any]] = field(default_factory=list)
    phases_s: dict[str, float] = field(default_factory=dict)
    _phase_began_s: float = field(init=False)

    def __post_init__(self) -> None:
        self._phase_began_s = self.clock()

    def end_phase(self, phase: str) -> None:
        """Count the time since the last phase ended, or since the beginning, as that of `phase`."""
        now_s = self.clock()
        self.phases_s[phase] = self.phases_s.get(phase, 0.0) + now_s - self._phase_began_s
        self._phase_began_s = now_s

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time of the block as spent on `stage`."""
        began_s = self.clock()
        try:
            yield
        finally:
            self.seconds[stage] += self.clock() - began_s

    def add_work(self, kind: str, seconds: float, cpu_s: float) -> None:
        """Count a build or a measurement that a worker has completed."""
        self.worked_s[kind] += seconds
        self.worked_cpu_s[kind] += cpu_s

    def document(self, tracking_s: float) -> dict[str, Any]:
        """Return milliseconds per trial: of this process by stage and in all, and of time without measurement.

        `ours_ms` is the sum of the stages, MLflow included although it works in parallel. `beside_measuring_ms` is the
        time of the loop less that of measurements, so that it includes preparing and waiting; with several
        measurements at once it can be negative. `cpu_ms` of this process and those of the workers hardly depend on
        the load of the machine.
        """
        per_trial = 1000 / max(1, self.trials)
        stages = {**self.seconds, "mlflow": tracking_s}
        return {
            "trials": self.trials,
            "phases_s": {phase: round(seconds, 3) for phase, seconds in self.phases_s.items()},
            "ours_ms": round(sum(stages.values()) * per_trial, 3),
            "cpu_ms": round(self.cpu_s * per_trial, 3),
            "stages_ms": {stage: round(seconds * per_trial, 3) for stage, seconds in stages.items()},
            "measuring_ms": round(self.worked_s[MEASURING] * per_trial, 3),
            "preparing_ms": round(self.worked_s[PREPARING] * per_trial, 3),
            "measuring_cpu_ms": round(self.worked_cpu_s[MEASURING] * per_trial, 3),
            "preparing_cpu_ms": round(self.worked_cpu_s[PREPARING] * per_trial, 3),
            **({"notes": dict(self.notes)} if self.notes else {}),
            **({"priors": self.priors} if self.priors else {}),
            "beside_measuring_ms": round((self.elapsed_s - self.worked_s[MEASURING]) * per_trial, 3),
        }
