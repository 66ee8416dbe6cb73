"""The steps of the demo for one kind of training: record, measure programs, write the table, train, compare."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from chorale.experiments.job_demo.choice import make_table
from chorale.experiments.job_demo.document import Json, Training, part, size_rows
from chorale.experiments.job_demo.programs import Built, Measured, build_programs, measure
from chorale.experiments.job_demo.ranks import run_ranks
from chorale.job.record import read_record
from chorale.job.table.layout import table_bytes
from chorale.runners.fabric.fabric import EmulatedFabric
from chorale.runners.measurement.machine import load_average
from chorale.synth.topology.topology import Topology
from chorale.tuner.config.recorded_job import RecordedJob

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "demo_job"
_LIMIT_S = 240.0
_RECORDED_STEPS = 2


class Kind(StrEnum):
    """How the model is spread over the ranks."""

    DDP = "ddp"
    FSDP2 = "fsdp2"


@dataclass(frozen=True, slots=True)
class Demo:
    """On one fabric that is up. home: folder for tables and what runners keep; steps: of training, two at least."""

    topology: Topology
    fabric: EmulatedFabric
    home: Path
    steps: int
    repeats: int

    def show(self, kind: Kind) -> Json:
        """Return the figures of one kind of training."""
        table = self.home / f"demo-job-{kind}.table"
        job = self._recorded(kind)
        parts, missing = self._measured(job)
        table.write_bytes(table_bytes(make_table(self.topology, parts)))
        trainings = {
            "gloo": self._train(kind, "gloo", {}),
            "chorale": self._train(kind, "chorale", {"CHORALE_TABLE": str(table)}),
        }
        times = self._times(job, table)
        measured = {each.collective: each for each, _ in parts}
        figures = part(trainings, list(size_rows(times, measured, self.topology.compute_count)))
        _say(f"{kind}: a step takes {figures['step_s']['gloo']:.3g} s with gloo, {figures['step_s']['chorale']:.3g} s")
        return {**figures, "table": str(table), "missing": missing, "load_average": load_average()}

    def _recorded(self, kind: Kind) -> RecordedJob:
        """Return what the job calls: every rank trains some steps without a table."""
        path = self.home / f"demo-job-{kind}.record.json"
        self._train(kind, "chorale", {"CHORALE_RECORD": str(path)}, _RECORDED_STEPS)
        return RecordedJob.of(read_record(path))

    def _measured(self, job: RecordedJob) -> tuple[list[tuple[Measured, Sequence[Built]]], list[str]]:
        parts: list[tuple[Measured, Sequence[Built]]] = []
        missing: list[str] = []
        for collective, seconds in job.seconds.items():
            built = build_programs(self.topology, collective)
            _say(f"measuring {len(built)} programs for {collective} at {len(seconds)} sizes")
            measured, absent = measure(self.topology, self.fabric, self.home, built, sorted(seconds), self.repeats)
            parts.append((measured, built))
            missing += [f"{collective}: {text}" for text in absent]
        return parts, missing

    def _train(self, kind: Kind, backend: str, environment: Mapping[str, str], steps: int | None = None) -> Training:
        _say(f"training ({kind}) with {backend}, {' '.join(environment) or 'as it is'}")
        with tempfile.TemporaryDirectory() as folder:
            output, report = Path(folder) / "training.json", Path(folder) / "report.json"
            options = ["--backend", backend, "--sharding", kind.value, "--steps", str(steps or self.steps)]
            self._run("train.py", [*options, "--output", str(output)], {**environment, "CHORALE_REPORT": str(report)})
            figures = json.loads(output.read_text())
            counts = json.loads(report.read_text()) if report.exists() else None
        return Training(backend, figures["step_s"], figures["losses"], counts)

    def _times(self, job: RecordedJob, table: Path) -> list[dict[str, Any]]:
        """Return the times of all recorded calls in a job, with both backends by turns."""
        calls = [(collective, size) for collective, seconds in job.seconds.items() for size in sorted(seconds)]
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "times.json"
            arguments = ["--calls", json.dumps(calls), "--repeats", str(self.repeats), "--output", str(output)]
            self._run("collective_times.py", arguments, {"CHORALE_TABLE": str(table)})
            times: list[dict[str, Any]] = json.loads(output.read_text())
        return times

    def _run(self, script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        run_ranks(self.topology, self.fabric, SCRIPTS / script, arguments, _LIMIT_S, environment)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
