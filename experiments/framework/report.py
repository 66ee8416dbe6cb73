"""Writes the reproduction report in Markdown: our rows, the papers' rows, and the outcome of each comparison."""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from chorale.experiments.framework.experiment import Experiment, Row
from chorale.experiments.framework.run import PartStore, code_id, load, load_all, run_experiment
from chorale.synth.errors import ChoraleError
from chorale.synth.executor.base import Executor
from chorale.synth.processors import core_count
from chorale.tuner.config.building import open_executor
from chorale.tuner.files.home import Home, write_file

RowOutcome = Literal["match", "better", "not reached", "no claim"]
"""A row's outcome. "no claim" means that there is no published number to compare with.

A printed number that is proved impossible counts as "not reached", with the proof as the reason.
"""

ROW_OUTCOMES: tuple[RowOutcome, ...] = ("match", "better", "not reached", "no claim")
_NOT_REACHED = ("worse", "impossible", "not reproduced", "not reached")
_MATCH = ("match", "reproduced", "with overhead")
_DIFFERENT: tuple[RowOutcome, ...] = ("not reached", "better")
_WITHOUT_REASON: Mapping[RowOutcome, str] = {"not reached": "no reason is known", "better": "ours is ahead"}
_SAID = ("reason", "verdict")
"""Headings of columns that lines about differences leave out, because the lines already contain their values."""
_MINUTES, _QUICK_MINUTES = 60.0, 10.0


def row_outcome(row: Row) -> RowOutcome:
    """Return the outcome of `row`: "not reached" if `holds` is false, otherwise the outcome of its worst quantity."""
    verdict = row.get("verdict")
    verdicts = set(verdict.values()) if isinstance(verdict, Mapping) else {verdict}
    if not row["holds"] or verdicts.intersection(_NOT_REACHED):
        return "not reached"
    if "better" in verdicts:
        return "better"
    return "match" if verdicts.intersection(_MATCH) else "no claim"


def count_outcomes(rows: Sequence[Row]) -> dict[RowOutcome, str]:
    """Count the rows with each outcome, in the order of `ROW_OUTCOMES`."""
    outcomes = Counter(map(row_outcome, rows))
    return {outcome: str(outcomes[outcome]) for outcome in ROW_OUTCOMES}


@dataclass(frozen=True, slots=True)
class ReportSection:
    """An experiment with its result.

    document: the result as `chorale experiment NAME --json` prints it; None if there is none
    error:    the reason why there is no result; empty if there is one
    picture:  the picture's file name in the report's folder; empty if there is none
    """

    experiment: Experiment
    document: Mapping[str, Any] | None
    error: str = ""
    picture: str = ""

    @property
    def rows(self) -> Sequence[Row]:
        return self.document["rows"] if self.document else ()

    @property
    def summary(self) -> list[str]:
        """The experiment's line in the summary: name, number of rows with each outcome, seconds; or name and error."""
        if self.document is None:
            return [self.experiment.name, *[""] * len(ROW_OUTCOMES), self.error]
        return [self.experiment.name, *count_outcomes(self.rows).values(), f"{self.document['seconds']:.0f} s"]

    @property
    def differences(self) -> list[list[str]]:
        """A line for each row in which we are better or miss the printed value: outcome, experiment, row, reason."""
        lines = []
        for row in self.rows:
            ending = row_outcome(row)
            if ending in _DIFFERENT:
                texts = ((column.heading, column.text(row)) for column in self.experiment.columns)
                words = "; ".join(f"{head}: {text}" for head, text in texts if text and head not in _SAID)
                lines.append([ending, self.experiment.name, words, row["reason"] or _WITHOUT_REASON[ending]])
        return lines

    @property
    def table(self) -> list[list[str]]:
        """The table's heading, then a line for each row; the last column is the row's outcome."""
        heading = [column.heading for column in self.experiment.columns]
        lines = [[*(c.text(row) for c in self.experiment.columns), row_outcome(row)] for row in self.rows]
        return [[*heading, "ending"], *lines]


def markdown(sections: Sequence[ReportSection], facts: Sequence[str]) -> str:
    """Return the report as Markdown; `facts` are lines about how the report was made."""

    def table(lines: Sequence[Sequence[str]]) -> str:
        heading, *rest = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in [heading, ["---"] * len(heading), *rest])

    parts = ["# Reproduction\n", *(f"{fact}\n" for fact in facts), table(_summary(sections))]
    parts += ["\n## What differs, and why\n", table(_differences(sections))]
    for section in sections:
        experiment = section.experiment
        parts.append(f"\n## {experiment.name}\n\n{experiment.question}\n\n{experiment.source}\n")
        parts.append(table(section.table) if section.document else section.error)
        if section.picture:
            parts.append(f"\n![{experiment.name}]({section.picture})\n")
    return "\n".join(parts) + "\n"


def _summary(sections: Sequence[ReportSection]) -> list[list[str]]:
    """Return the number of rows with each outcome, for each experiment and in total."""
    answered = [section for section in sections if section.document]
    counts = count_outcomes([row for section in answered for row in section.rows])
    seconds = sum(section.document["seconds"] for section in answered if section.document)
    total = ["all", *counts.values(), f"{seconds:.0f} s"]
    return [["experiment", *ROW_OUTCOMES, "took"], *(section.summary for section in sections), total]


def _differences(sections: Sequence[ReportSection]) -> list[list[str]]:
    """Return lines for rows in which we miss the printed values, then for rows in which our values are better."""
    lines = [line for section in sections for line in section.differences]
    ordered = sorted(lines, key=lambda line: _DIFFERENT.index(cast(RowOutcome, line[0])))
    return [["ending", "experiment", "row", "why"], *ordered]


def section_of(
    experiment: Experiment, quick: bool, folder: Path, store: PartStore, ends_s: float, executor: Executor | None = None
) -> ReportSection:
    """Return the section for `experiment`. Parts in `store` are not computed again, and new ones are stored.

    Args:
        experiment: the experiment.
        quick: whether to leave out rows that take long.
        folder: folder for the experiment's picture.
        store: where `chorale experiment` saves parts of results.
        ends_s: time (by `time.monotonic`) at which to stop computing; reading stored parts gets at least a second.
        executor: computes the parts; None computes them in this process.
    """
    picture = f"{experiment.name}-{'quick' if quick else 'full'}-{code_id()[:16]}.svg" if experiment.plot else ""
    try:
        with _time_limit(max(ends_s - time.monotonic(), 1.0)):
            result = run_experiment(experiment, quick, executor, store=store, resume=True)
            if experiment.plot and not (folder / picture).is_file():
                experiment.plot(result.rows, folder / picture)
    except TimeoutError:
        return ReportSection(experiment, None, "ran out of time; run again to continue from here")
    except Exception as error:  # one failure must not stop the other experiments
        return ReportSection(experiment, None, str(error) or type(error).__name__)
    return ReportSection(experiment, result.document(experiment, quick), "", picture)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block after `seconds`, so that the block can take down fabrics that it has started."""

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def reproduce(
    quick: Annotated[bool, typer.Option("--quick", help="Leave out rows that take longer than about 10 s.")] = False,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after this time; run again to continue. [60; quick 10]")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(help="An experiment; may be given more than once.")] = None,
) -> None:
    """Run all experiments and write report.md and its pictures to `reproduction` in the data folder."""
    home = Home.from_environment()
    folder, store = home.create(home.root / "reproduction"), PartStore(home.create(home.experiments))
    ends_s = time.monotonic() + 60 * (minutes or (_QUICK_MINUTES if quick else _MINUTES))
    sections = []
    with open_executor("serial" if quick else "processes", None) as executor:
        for experiment in [load(name) for name in only or []] or load_all():
            typer.echo(f"{experiment.name} …", err=True)
            sections.append(section_of(experiment, quick, folder, store, ends_s, executor))
            typer.echo(f"  {sections[-1].summary}", err=True)
            fact = (
                f"Rows that take long are {'left out' if quick else 'included'}. Load of this machine at the end: "
                f"{os.getloadavg()[0]:.1f} on {core_count()} cores; only times depend on it."
            )
            write_file(folder / "report.md", markdown(sections, [fact]).encode())
    typer.echo(str(folder / "report.md"))
    if any(section.error or not section.document or not section.document["holds"] for section in sections):
        raise typer.Exit(1)


if __name__ == "__main__":
    try:
        typer.run(reproduce)
    except ChoraleError as error:  # report an invalid request in one line
        sys.stderr.write(f"chorale: {error}\n")
        sys.exit(error.exit_code)
