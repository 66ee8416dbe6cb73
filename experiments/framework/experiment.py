"""What every experiment is: a question whose answer is rows, each of which says whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""A row of an answer, as JSON has it. `holds` says whether it is what it must be; `reason` (or None) why it is not
what was expected, or more than that."""

Case: TypeAlias = Hashable
"""The configuration of one part of an answer: frozen, picklable, told from others by its `repr`, named by its `str`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table for people: its heading, and its text in a row."""

    heading: str
    text: Callable[[Row], str]


def concatenate_rows(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts."""
    return [row for part in parts for row in part]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question, and the way to answer it: by parts that know nothing of one another, then by what follows from all.

    name:     on the command line
    source:   where the question, or what the answer is compared with, comes from
    cases:    what to work out, in order; given whether to leave out what takes longer than about ten seconds
    answer:   the part of one case as JSON has it, by default its rows. It may run in another process, and its result
              is kept on disk: nothing but the case, the code and, if `alone`, the machine decides it
    conclude: the rows of the answer from the parts of all cases in order
    alone:    parts look at clocks or start processes of their own: one at a time, in the process that asks
    plot:     writes a picture of the rows to a .png, .svg or .pdf file; None where there is nothing to draw
    """

    name: str
    question: str
    source: str
    columns: tuple[Column, ...]
    cases: Callable[[bool], Sequence[Case]]
    evaluate: Callable[[Any], Any]
    conclude: Callable[[Sequence[Any]], Sequence[Row]] = concatenate_rows
    alone: bool = False
    plot: Callable[[Sequence[Row], Path], None] | None = None
