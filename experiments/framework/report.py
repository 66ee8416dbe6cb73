"""The report of a reproduction in Markdown and HTML: our rows beside the printed ones, and the outcome of each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from chorale.experiments.framework.experiment import Experiment, Row
from chorale.tuner.files.html_template import render_html

RowOutcome = Literal["match", "better", "not reached", "no claim"]
"""The outcome of a row: "no claim" has nothing published beside it. A printed number that is proved impossible is
not reached, with the proof as the reason."""

ROW_OUTCOMES: tuple[RowOutcome, ...] = ("match", "better", "not reached", "no claim")
_NOT_REACHED = ("worse", "impossible", "not reproduced", "not reached")
_MATCH = ("match", "reproduced", "with overhead")


def row_outcome(row: Row) -> RowOutcome:
    """Return the outcome of `row`: of its worst quantity if it compares several, "not reached" if it does not hold."""
    verdict = row.get("verdict")
    verdicts = set(verdict.values()) if isinstance(verdict, Mapping) else {verdict}
    if not row["holds"] or verdicts.intersection(_NOT_REACHED):
        return "not reached"
    if "better" in verdicts:
        return "better"
    return "match" if verdicts.intersection(_MATCH) else "no claim"


def count_outcomes(rows: Sequence[Row]) -> dict[RowOutcome, int]:
    """Return the number of rows by outcome, in the order of `ROW_OUTCOMES`."""
    outcomes = [row_outcome(row) for row in rows]
    return {outcome: outcomes.count(outcome) for outcome in ROW_OUTCOMES}


_TEMPLATE = Path(__file__).with_suffix(".html")


@dataclass(frozen=True, slots=True)
class ReportSection:
    """An experiment with its result.

    document: as `chorale experiment NAME --json` prints it; None if there is no result
    error:    in words, why there is no result; empty if there is one
    picture:  file name of the picture beside the report; empty without one
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
        """Name, number of rows by outcome, and seconds; the error instead of these without a result."""
        counts = (
            [str(count) for count in count_outcomes(self.rows).values()] if self.document else [""] * len(ROW_OUTCOMES)
        )
        seconds = f"{self.document['seconds']:.0f} s" if self.document else self.error
        return [self.experiment.name, *counts, seconds]

    @property
    def one_line(self) -> str:
        """The number of rows by outcome, in one line."""
        if not self.document:
            return self.error
        counts = ", ".join(f"{count} {ending}" for ending, count in count_outcomes(self.rows).items() if count)
        return f"{counts} in {self.document['seconds']:.0f} s"

    @property
    def differences(self) -> list[list[str]]:
        """A line for each row that is better or not reached: outcome, experiment, the row in words, and why."""
        outcomes = [(row_outcome(row), row) for row in self.rows]
        return [
            [ending, self.experiment.name, self._in_words(row), row["reason"] or _WITHOUT_REASON[ending]]
            for ending, row in outcomes
            if ending in _DIFFERENT
        ]

    def _in_words(self, row: Row) -> str:
        texts = ((column.heading, column.text(row)) for column in self.experiment.columns)
        return "; ".join(f"{heading}: {text}" for heading, text in texts if text and heading not in _SAID)

    @property
    def table(self) -> list[list[str]]:
        """The heading, then a line for each row, which ends with its outcome."""
        heading = [column.heading for column in self.experiment.columns]
        lines = [[*(c.text(row) for c in self.experiment.columns), row_outcome(row)] for row in self.rows]
        return [[*heading, "ending"], *lines]


_SUMMARY_HEADING = ["experiment", *ROW_OUTCOMES, "took"]
_DIFFERENCES_HEADING = ["ending", "experiment", "row", "why"]
_DIFFERENT: tuple[RowOutcome, ...] = ("not reached", "better")
_WITHOUT_REASON: Mapping[RowOutcome, str] = {"not reached": "no reason is known", "better": "ours is ahead"}
_SAID = ("reason", "verdict")
"""Headings of what the other cells of a difference say."""


def markdown(sections: Sequence[ReportSection], facts: Sequence[str]) -> str:
    """Return the report as Markdown; `facts` are lines about how the report was made."""
    parts = ["# Reproduction\n", *(f"{fact}\n" for fact in facts)]
    parts += [
        _markdown_table(_summary(sections)),
        "\n## What differs, and why\n",
        _markdown_table(_differences(sections)),
    ]
    for section in sections:
        parts.append(
            f"\n## {section.experiment.name}\n\n{section.experiment.question}\n\n{section.experiment.source}\n"
        )
        parts.append(_markdown_table(section.table) if section.document else section.error)
        if section.picture:
            parts.append(f"\n![{section.experiment.name}]({section.picture})\n")
    return "\n".join(parts) + "\n"


def html(sections: Sequence[ReportSection], facts: Sequence[str]) -> str:
    """Return the report as one HTML page; tables are folded."""
    return render_html(
        _TEMPLATE, facts=facts, summary=_summary(sections), differences=_differences(sections), sections=sections
    )


def _summary(sections: Sequence[ReportSection]) -> list[list[str]]:
    """Return the number of rows by outcome, for each experiment and in all."""
    answered = [section for section in sections if section.document]
    counts = count_outcomes([row for section in answered for row in section.rows])
    seconds = sum(section.document["seconds"] for section in answered if section.document)
    total = ["all", *map(str, counts.values()), f"{seconds:.0f} s"]
    return [_SUMMARY_HEADING, *(section.summary for section in sections), total]


def _differences(sections: Sequence[ReportSection]) -> list[list[str]]:
    """Return what is not reached, then what is better."""
    lines = [line for section in sections for line in section.differences]
    return [_DIFFERENCES_HEADING, *sorted(lines, key=lambda line: _DIFFERENT.index(cast(RowOutcome, line[0])))]


def _markdown_table(lines: Sequence[Sequence[str]]) -> str:
    heading, *rest = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines]
    ruled = [heading, ["---"] * len(heading), *rest]
    return "\n".join(f"| {' | '.join(line)} |" for line in ruled)
