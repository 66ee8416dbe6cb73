"""Answering an experiment: its parts over an executor, each kept as soon as it is there, then the rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from chorale.experiments.framework.catalog import load
from chorale.experiments.framework.experiment import Case, Experiment, Row
from chorale.experiments.framework.parts import ExperimentPart, PartStore
from chorale.synth.executor.base import Executor
from chorale.synth.executor.serial import SerialExecutor
from chorale.tuner.reports.stopwatch import peak_memory_bytes

ProgressCallback: TypeAlias = Callable[[str, int, int], None]
"""Called with the case that is next to come in, how many are there, and how many there will be."""


@dataclass(frozen=True, slots=True)
class ExperimentResult:
    """Rows in order; the seconds that all parts took together, and the most memory that any of their processes had."""

    rows: Sequence[Row]
    seconds: float
    peak_memory_bytes: int

    @property
    def holds(self) -> bool:
        return all(row["holds"] for row in self.rows)

    def document(self, experiment: Experiment, quick: bool) -> dict[str, Any]:
        """Return the answer as `chorale experiment NAME --json` prints it."""
        facts = {"experiment": experiment.name, "question": experiment.question, "source": experiment.source}
        found = {"quick": quick, "rows": list(self.rows), "holds": self.holds}
        return {**facts, **found, "seconds": self.seconds, "peak_memory_bytes": self.peak_memory_bytes}


def run_experiment(
    experiment: Experiment,
    quick: bool,
    executor: Executor | None = None,
    store: PartStore | None = None,
    resume: bool = False,
    progress: ProgressCallback | None = None,
) -> ExperimentResult:
    """Return the answer, the same whatever `executor` its parts run over: here if it is None, or if they must be alone.

    kept:   keeps each part as soon as it is there; None keeps nothing
    resume: do not work out again what `kept` has
    """
    cases = experiment.cases(quick)
    parts = _stored_parts(experiment, cases, store) if store and resume else {}
    missing = [number for number in range(len(cases)) if number not in parts]
    tell = _ProgressReporter(cases, missing, progress)
    tell(parts)

    def arrived(place: int, part: ExperimentPart) -> None:
        number = missing[place]
        parts[number] = part
        if store:
            store.save(experiment.name, cases[number], part)
        tell(parts)

    asked = [cases[number] for number in missing]
    if experiment.alone or executor is None or executor.name == SerialExecutor.name:
        SerialExecutor().map(_part, asked, experiment, on_result=arrived)
    else:
        executor.map(_part_by_name, asked, experiment.name, on_result=arrived)
    return _conclude(experiment, [parts[number] for number in range(len(cases))])


def stored_result(experiment: Experiment, quick: bool, store: PartStore) -> ExperimentResult | None:
    """Return the answer if all of its parts were kept, else None; nothing is worked out."""
    cases = experiment.cases(quick)
    parts = _stored_parts(experiment, cases, store)
    return _conclude(experiment, [parts[number] for number in sorted(parts)]) if len(parts) == len(cases) else None


def case_name(case: Case) -> str:
    """Return what people read of a case."""
    return ", ".join(map(str, case)) if isinstance(case, tuple) else str(case)


@dataclass(frozen=True, slots=True)
class _ProgressReporter:
    """Tells which of the missing cases comes next."""

    cases: Sequence[Case]
    missing: Sequence[int]
    report: ProgressCallback | None

    def __call__(self, parts: Mapping[int, ExperimentPart]) -> None:
        waiting = [number for number in self.missing if number not in parts]
        if self.report and waiting:
            self.report(case_name(self.cases[waiting[0]]), len(parts), len(self.cases))


def _stored_parts(experiment: Experiment, cases: Sequence[Case], kept: PartStore) -> dict[int, ExperimentPart]:
    found = ((number, kept.load(experiment.name, case)) for number, case in enumerate(cases))
    return {number: part for number, part in found if part is not None}


def _part_by_name(name: str, case: Case) -> ExperimentPart:
    """Work out a part in a worker, which gets the name of the experiment: its functions do not travel."""
    return _part(load(name), case)


def _part(experiment: Experiment, case: Case) -> ExperimentPart:
    begun = time.perf_counter()
    found = experiment.evaluate(case)
    seconds = time.perf_counter() - begun
    # Through JSON in any case, so that a part is the same before and after it was kept.
    return ExperimentPart(json.loads(json.dumps(found, allow_nan=False)), seconds, peak_memory_bytes())


def _conclude(experiment: Experiment, parts: Sequence[ExperimentPart]) -> ExperimentResult:
    rows = experiment.conclude([part.value for part in parts])
    seconds, peak = sum(part.seconds for part in parts), max((part.peak_memory_bytes for part in parts), default=0)
    return ExperimentResult(rows, seconds, peak)
