"""Reads tables of recorded runs: CSV with the columns of `COLUMNS`."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chorale.runners.api.units import format_size
from chorale.synth.collective import STANDARD
from chorale.synth.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class ScheduleOrigin:
    """Where the instructions of a recorded run came from: a schedule that a generator wrote, or the vendor's library.

    schedule:     the name of the file, or of the library
    k, instances: trees per root, and copies on channels of their own; None where the record does not say
    """

    fabric: str
    collective: str
    generator: str
    schedule: str
    k: int | None = None
    instances: int | None = None

    def __str__(self) -> str:
        return f"{self.generator} {self.schedule} ({self.collective} on {self.fabric})"


@dataclass(frozen=True, slots=True)
class RecordedConfiguration:
    """Everything that was set for recorded runs, but for the size.

    buffer_bytes: of each connection's buffer, None for what the runtime takes by itself
    in_place:     whether input and output shared memory
    """

    origin: ScheduleOrigin
    buffer_bytes: int | None
    in_place: bool

    def __str__(self) -> str:
        buffer = "its own buffers" if self.buffer_bytes is None else f"buffers of {format_size(self.buffer_bytes)}"
        return f"{self.origin} with {buffer}, {'in' if self.in_place else 'out of'} place"


COLUMNS = (
    "fabric",
    "collective",
    "generator",
    "schedule",
    "trees_per_root_k",
    "instances",
    "buffer_bytes",
    "size_bytes",
    "time_out_of_place_us",
    "wrong_out_of_place",
    "time_in_place_us",
    "wrong_in_place",
)
UNCHECKED = "N/A"
"""What test programs write in place of a count of wrong elements where they were told not to check."""

_PLACES = (("out_of_place", False), ("in_place", True))
_WAY_OUT = f"give a CSV table with the columns {', '.join(COLUMNS)}"


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """The mean time of one launch at one size, and how many elements were wrong; None where nobody checked."""

    configuration: RecordedConfiguration
    size_bytes: int
    time_s: float
    wrong: int | None


def read_runs(text: str) -> tuple[RecordedRun, ...]:
    """Return the runs of a table, in its order: two for each row, one out of place and one in place.

    An empty cell means that something does not apply: a row without a time gives no run. Rows of size 0, which the
    test programs print when the ranks get nothing each, give none either. `N/A` in place of a count of wrong elements
    means that nobody checked. Raises InvalidInput, with the number of the
    line, for a table that lacks columns and for cells that are not numbers.
    """
    try:
        return _all_runs(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise InvalidInput("a table of runs must be CSV", error, _WAY_OUT) from error


def _all_runs(table: csv.DictReader[str]) -> tuple[RecordedRun, ...]:
    missing = [column for column in COLUMNS if column not in (table.fieldnames or ())]
    if missing:
        raise InvalidInput("a table of runs must have all columns", f"no {', '.join(missing)}", _WAY_OUT)
    return tuple(run for row in table for run in _runs(row, table.line_num))


def _runs(row: Mapping[str, str | None], line: int) -> Iterator[RecordedRun]:
    size_bytes = _required(row, "size_bytes", line)
    origin = ScheduleOrigin(
        _text(row, "fabric", line),
        _collective(row, line),
        _text(row, "generator", line),
        _text(row, "schedule", line),
        _whole(row, "trees_per_root_k", line),
        _whole(row, "instances", line),
    )
    buffer_bytes = _whole(row, "buffer_bytes", line)
    for place, in_place in _PLACES:
        time_s = _seconds(row, f"time_{place}_us", line)
        if time_s is not None and size_bytes > 0:
            wrong = _wrong(row, f"wrong_{place}", line)
            yield RecordedRun(RecordedConfiguration(origin, buffer_bytes, in_place), size_bytes, time_s, wrong)


def _text(row: Mapping[str, str | None], column: str, line: int) -> str:
    if not (value := (row[column] or "").strip()):
        raise InvalidInput(f"line {line} of a table of runs must have a {column}", "an empty cell", _WAY_OUT)
    return value


def _collective(row: Mapping[str, str | None], line: int) -> str:
    value = _text(row, "collective", line)
    known = [name.value for name in STANDARD]
    if value not in known:
        rule = f"line {line} of a table of runs must name a collective that is known"
        raise InvalidInput(rule, value, f"write one of {', '.join(known)}")
    return value


def _required(row: Mapping[str, str | None], column: str, line: int) -> int:
    value = _whole(row, column, line)
    if value is None:
        raise InvalidInput(f"line {line} of a table of runs must have a {column}", "an empty cell", _WAY_OUT)
    return value


def _wrong(row: Mapping[str, str | None], column: str, line: int) -> int | None:
    return None if (row[column] or "").strip() == UNCHECKED else _required(row, column, line)


def _whole(row: Mapping[str, str | None], column: str, line: int) -> int | None:
    text = (row[column] or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        rule = f"line {line}, column {column} of a table of runs must be a whole number, 0 or more"
        raise InvalidInput(rule, text, "correct the table")
    return int(text)


def _seconds(row: Mapping[str, str | None], column: str, line: int) -> float | None:
    text = (row[column] or "").strip()
    if not text:
        return None
    try:
        time_us = float(text)
    except ValueError:
        time_us = math.nan
    if not (0 < time_us < math.inf):
        rule = f"line {line}, column {column} of a table of runs must be a time in us above zero"
        raise InvalidInput(rule, text, "correct the table")
    return time_us / 1e6
