"""Run all experiments and write one report: `make reproduce`, or `python -m` and the name of this module."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from chorale.experiments.framework.catalog import load, load_all
from chorale.experiments.framework.experiment import Experiment
from chorale.experiments.framework.parts import PartStore, code_id
from chorale.experiments.framework.report import ReportSection, html, markdown
from chorale.experiments.framework.run import stored_result
from chorale.synth.errors import ChoraleError
from chorale.tuner.files.home import Home
from chorale.tuner.files.read_write import write_file

_MINUTES, _QUICK_MINUTES = 60.0, 10.0
_GRACE_S = 20.0
"""Time for an interrupted command to take down networks and clusters that it has started."""


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The settings of a reproduction.

    folder:  for the report and its pictures
    store:   the parts of results that `chorale experiment` saves
    quick:   leave out rows that take long
    ends_s:  when to start nothing more, and to stop what runs, by `time.monotonic`
    logged:  also log every result that is computed as a run of MLflow
    """

    folder: Path
    store: PartStore
    quick: bool
    ends_s: float
    logged: bool = False

    def section(self, experiment: Experiment) -> ReportSection:
        """Return the section of `experiment`; stored parts are not computed again."""
        picture = self._picture(experiment)
        result = stored_result(experiment, self.quick, self.store)
        if result is not None and (not picture or (self.folder / picture).is_file()):
            return ReportSection(experiment, result.document(experiment, self.quick), "", picture)
        remaining_s = self.ends_s - time.monotonic()
        if remaining_s <= 0:
            return ReportSection(experiment, None, "no time left; ask again to go on from here")
        output, trouble = _run_command(self._command(experiment, picture), remaining_s)
        drawn = picture if (self.folder / picture).is_file() else ""
        return ReportSection(experiment, None if trouble else json.loads(output), trouble, drawn)

    def _picture(self, experiment: Experiment) -> str:
        extent = "quick" if self.quick else "full"
        return f"{experiment.name}-{extent}-{code_id()[:16]}.svg" if experiment.plot else ""

    def _command(self, experiment: Experiment, picture: str) -> list[str]:
        options = ["--quick"] if self.quick else ["--executor", "processes"]
        options += ["--plot", str(self.folder / picture)] if picture else []
        options += ["--mlflow"] if self.logged else []
        return [sys.executable, "-m", "chorale", "experiment", experiment.name, "--json", "--resume", *options]


def _run_command(command: Sequence[str], limit_s: float) -> tuple[str, str]:
    """Return the output of the command, and why there is none; a process group of its own can be ended as a whole."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as process:  # noqa: S603
        try:
            output, words = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return "", "ran out of time; ask again to go on from here"
        finally:
            if process.returncode is None:
                _interrupt(process)
    if output.strip():
        return output, ""  # exit code 1 says that a row does not hold, which the document says too
    return "", words.strip().splitlines()[-1] if words.strip() else f"exit code {process.returncode}"


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Interrupt a command and its workers, so that they take down what they have started; kill what does not end."""
    os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(process.pid, signal.SIGKILL)


def reproduce(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out rows that take longer than about 10 s.")] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so long; ask again to go on. [60; quick 10]")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="An experiment; may be given more than once.")] = None,
    mlflow: Annotated[bool, typer.Option("--mlflow", help="Log each new result as a run of MLflow.")] = False,
) -> None:
    """Run all experiments and write report.md and report.html to `reproduction` in the data folder."""
    home = Home.from_environment()
    folder, store = home.create(home.root / "reproduction"), PartStore(home.create(home.experiments))
    limit_s = 60 * (minutes or (_QUICK_MINUTES if quick else _MINUTES))
    task = Reproduction(folder, store, quick, time.monotonic() + limit_s, mlflow)
    sections = []
    for experiment in _chosen(only or []):
        typer.echo(f"{experiment.name} …", err=True)
        sections.append(task.section(experiment))
        typer.echo(f"  {sections[-1].summary}", err=True)
        _write(folder, sections, quick)
    typer.echo(str(folder / "report.html"))
    if any(section.error or not section.document or not section.document["holds"] for section in sections):
        raise typer.Exit(1)


def _chosen(names: Sequence[str]) -> list[Experiment]:
    return [load(name) for name in names] or list(load_all())


def _write(folder: Path, sections: Sequence[ReportSection], quick: bool) -> None:
    load = os.getloadavg()[0]
    facts = [
        f"Rows that take long are {'left out' if quick else 'included'}. Load of this machine at the end: {load:.1f} "
        f"on {os.cpu_count()} cores; times depend on it, everything else does not."
    ]
    write_file(folder / "report.md", markdown(sections, facts).encode())
    write_file(folder / "report.html", html(sections, facts).encode())


def main() -> None:
    """Run the command; a wrong request gives one line."""
    try:
        typer.run(reproduce)
    except ChoraleError as error:
        sys.stderr.write(f"chorale: {error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
