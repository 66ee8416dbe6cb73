"""Experiments: questions that are answered by rows, each of which says whether it holds."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
"""A row of a result, as JSON has it. `holds` says whether it is as required; `reason`, which may be None, explains a
difference from what was expected."""

Case: TypeAlias = Hashable
"""The configuration of one part of a result: frozen, picklable, identified by its `repr`, named by its `str`."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the table for people: its heading, and its text in a row."""

    heading: str
    text: Callable[[Row], str]


def columns(*parts: str | Column) -> tuple[Column, ...]:
    """Return columns in order: a text such as "nodes, T_L=steps, us:.4g" stands for several.

    Each of its fields is `heading=key:format`: heading and format may be left out. A row without the key, or with None
    there, has an empty cell.
    """
    chosen: list[Column] = []
    for part in parts:
        if isinstance(part, Column):
            chosen.append(part)
            continue
        for field in part.split(", "):
            named, _, shown = field.partition(":")
            heading, _, key = named.rpartition("=")
            chosen.append(Column(heading or key, partial(_cell, key, shown)))
    return tuple(chosen)


def _cell(key: str, shown: str, row: Row) -> str:
    value = row.get(key)
    return "" if value is None else format(value, shown) if shown else str(value)


def concatenate_rows(parts: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of all parts."""
    return [row for part in parts for row in part]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A question, and how it is answered: by independent parts, then by a conclusion from all of them.

    name:     on the command line
    source:   where the question, or what the answer is compared with, comes from
    cases:    the cases in order
    evaluate: the part of one case as JSON has it, by default its rows. It may run in another process, and its value
              is stored on disk: it must depend on the case, the code and, if `alone`, the machine only
    conclude: the rows of the result from the parts of all cases in order
    alone:    parts measure time or start processes: they run one at a time, in the calling process
    plot:     writes a picture of the rows to a .png, .svg or .pdf file; None where there is nothing to draw
    quick:    the cases without those that take longer than about ten seconds, or shorter ones in their place; None: all
    """

    name: str
    question: str
    source: str
    columns: tuple[Column, ...]
    cases: Sequence[Any]
    evaluate: Callable[[Any], Any]
    conclude: Callable[[Sequence[Any]], Sequence[Row]] = concatenate_rows
    alone: bool = False
    plot: Callable[[Sequence[Row], Path], None] | None = None
    quick: Sequence[Any] | None = None

    def chosen(self, quick: bool) -> Sequence[Any]:
        """Return the cases, `quick` those that take seconds."""
        return self.cases if not quick or self.quick is None else self.quick
