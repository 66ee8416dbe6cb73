"""What every experiment is: a question with rows for an answer, each of which says whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""A row of an answer, as JSON has it. `holds` says whether it is what it must be; `reason` (or None) why it is not
what was expected, or more than that."""

Report: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being worked on, how many rows are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table for people: its heading, and its text in a row."""

    heading: str
    text: Callable[[Row], str]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question, and the way to answer it.

    name:    on the command line
    source:  where the question, or what the answer is compared with, comes from
    run:     the rows in order; given a report, and whether to leave out what takes longer than about ten seconds
    plot:    writes a picture of the rows to a .png, .svg or .pdf file; None where there is nothing to draw
    """

    name: str
    question: str
    source: str
    columns: tuple[Column, ...]
    run: Callable[[Report, bool], Sequence[Row]]
    plot: Callable[[Sequence[Row], Path], None] | None = None
