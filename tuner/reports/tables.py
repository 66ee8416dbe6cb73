"""Formats tables and units, prints them on the terminal, and defines `Result`, which every report returns."""

import os
import resource
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from rich import box
from rich.console import Console, ConsoleDimensions, ConsoleOptions
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from chorale.runners.api.units import format_size
from chorale.synth.errors import ChoraleError, printable
from chorale.synth.identity import rational_text

BYTES_PER_S = {"GB/s": Fraction(10**9), "Gbit/s": Fraction(10**9, 8)}
_SECONDS = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps"), (1e-15, "fs"))
SHOWN_ID = 16
_LONGEST = 24
"""Maximum length of fractions that are displayed exactly; JSON documents always have the exact value."""
PIPED_COLUMNS = 80
"""Width of output to a file or a pipe, unless the environment variable COLUMNS is set."""
Columns = Mapping[str, str | Callable[[Any], object]]
"""Column heading -> key of the cell in a row, or a function that returns the cell for a row."""
_WIDEST_COLUMNS = 10**4
_WHOLE_COLUMNS = 12
"""Words of at most this many characters are never broken in tables."""


def short_id(content_id: str) -> str:
    """Return the first digits of a content id for display; JSON documents have the complete id."""
    return content_id[:SHOWN_ID]


def decimal(value: Fraction | float) -> str:
    """Format a number with two decimal places, fewer for large and more for small numbers: `0.94`, `2`, `0.00123`."""
    number = float(value)
    if not 0.1 <= number < 100:
        return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
    return f"{number:.2f}".rstrip("0").rstrip(".")


def with_fraction(text: str, exact: Fraction) -> str:
    """Return `text`, followed by `exact` in parentheses unless `exact` is an integer or too long to display."""
    fraction = rational_text(exact)
    return text if exact.denominator == 1 or len(fraction) > _LONGEST else f"{text} ({fraction})"


def bandwidth_time_text(factor: Fraction) -> str:
    """Format a bandwidth factor (bandwidth time × node bandwidth / size): `0.94 × size / node bandwidth (15/16)`."""
    return with_fraction(f"{decimal(factor)} × size / node bandwidth", factor)


def time_per_byte_text(time_per_byte: Fraction, unit: str) -> str:
    """Format a time per byte: `2.88 ps/byte (3/1040 per GB/s)` or, without units, `0.23 × size / link rate (15/64)`."""
    if unit not in BYTES_PER_S:
        return with_fraction(f"{decimal(time_per_byte)} × size / link rate", time_per_byte)
    text = f"{seconds_text(time_per_byte / BYTES_PER_S[unit])}/byte"
    fraction = rational_text(time_per_byte)
    return text if len(fraction) > _LONGEST else f"{text} ({fraction} per {unit})"


def algbw_text(time_per_byte: Fraction, unit: str) -> str:
    """Format an algbw (size / time): `346.7 GB/s (1040/3)`, or, without units, `4.27 × link rate (64/15)`."""
    rate = 1 / time_per_byte
    if unit not in BYTES_PER_S:
        return with_fraction(f"{decimal(rate)} × link rate", rate)
    return with_fraction(f"{float(rate):.4g} {unit}", rate)


def seconds_text(seconds: Fraction | float) -> str:
    """Format a duration with three digits in a suitable unit: `2.88 ps`, `4.03 s`."""
    value = float(seconds)
    scale, unit = next((item for item in _SECONDS if abs(value) >= item[0]), _SECONDS[-1])
    return f"{value / scale:.3g} {unit}"


def speed_text(time_ratio: float) -> str:
    """Describe a ratio of times: 0.17 is `5.9× faster than`, 2 is `2× slower than`."""
    if round(time_ratio, 3) == 1:
        return "as fast as"
    if time_ratio < 1:
        return f"{1 / time_ratio:.3g}× faster than"
    return f"{time_ratio:.3g}× slower than"


def fact_label(name: str) -> str:
    return _LABELS.get(name, name.replace("_", " "))


def fact_text(name: str, value: Any, unit: str) -> str:
    """Format a document's value for display: costs with units, ids shortened.

    name: the value's key in the document
    unit: unit of the network's bandwidths
    """
    if value is None:
        return "not defined here"
    if name in _TEXTS:
        return _TEXTS[name](value, unit)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_TEXTS: Mapping[str, Callable[[Any, str], str]] = {
    "id": lambda value, _unit: short_id(value),
    "schedule": lambda value, _unit: short_id(value),
    "bandwidth_factor": lambda value, _unit: bandwidth_time_text(Fraction(value)),
    "time_per_byte": lambda value, unit: time_per_byte_text(Fraction(value), unit),
    "algbw": lambda value, unit: f"{decimal(value)} × link rate" if unit == "link" else f"{value:.4g} {unit}",
    "digest": lambda value, _unit: short_id(value),
    "size_bytes": lambda value, _unit: format_size(value),
    "max_bytes": lambda value, _unit: format_size(value),
    "time_us": lambda value, _unit: seconds_text(value / 1e6),
    "latency_s": lambda value, _unit: seconds_text(value) if value else "0",
}
_LABELS: Mapping[str, str] = {
    "bandwidth_factor": "bandwidth time",
    "size_bytes": "buffer size",
    "max_bytes": "correct up to",
    "time_us": "predicted time",
    "latency_s": "latency",
    "largest": "most on a link",
    "smallest": "least on a link",
    "total": "on all links",
    "threadblocks_max": "thread blocks, most",
    "steps_max": "steps of a block, most",
    "scratch_chunks_max": "scratch chunks, most",
    "fixed": "sums: same bits in every run",
    "same_on_all_ranks": "sums: same bits on all ranks",
    "independent_of_position": "sums: one order for all chunks",
    "orders": "sums: different orders",
    "depth": "sums: additions in a row",
    "digest": "sums: id of the orders",
}


@dataclass(slots=True)
class Stopwatch:
    """Measures the total time of each named stage, in the order in which stages are first used."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def report(self, outside_total: tuple[str, ...] = ()) -> dict[str, float]:
        """Return the seconds per stage and the `total`, which excludes the stages in `outside_total`."""
        total = sum(value for name, value in self.seconds.items() if name not in outside_total)
        return {"total": total, **self.seconds}

    def closing(self, *outside_total: str) -> dict[str, Any]:
        """Return a document's last keys: `seconds` (the `total` of `report`), `stages` and `peak_memory_bytes`."""
        stages = self.report(outside_total)
        return {"seconds": stages.pop("total"), "stages": stages, "peak_memory_bytes": peak_memory_bytes()}


def peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class Result:
    """The result of a command or of a request to the service.

    document:  JSON document that `--json` prints or the service sends
    shown:     tables and texts for the terminal, in order
    exit_code: 0, or 1 if a checked statement is false
    failure:   error raised after the result is printed, to explain what is false
    next_step: command to try next, shown in the terminal only
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        *shown: Table | Text | str,
        exit_code: int = 0,
        failure: ChoraleError | None = None,
        next_step: str | None = None,
    ) -> None:
        self.document, self.shown = document, shown
        self.exit_code, self.failure, self.next_step = exit_code, failure, next_step


def facts_table(title: str, rows: Iterable[tuple[str, str | None]] = ()) -> Table:
    """Return a table of names and values without the rows whose value is None."""
    table = Table(title=title, show_header=False)
    for name, value in rows:
        if value is not None:
            table.add_row(name, value)
    return table


def ruled_table(*headings: str, **options: Any) -> Table:
    """Return a table without borders, with a rule below the header only."""
    return Table(*headings, box=box.SIMPLE_HEAD, **options)


def rows_table(
    rows: Iterable[Any], columns: Columns, title: str | None = None, numbers: bool = False, **options: Any
) -> Table:
    """Return a table with a line for each of `rows`. Numbers in `rows` must already be formatted as text.

    numbers: whether all columns except the first contain numbers, which are right-aligned and never wrapped
    """
    table = Table(title=title, **options)
    for index, heading in enumerate(columns):
        style: dict[str, Any] = {"justify": "right", "no_wrap": True} if index else {"overflow": "fold"}
        table.add_column(heading, **(style if numbers else {}))
    for row in rows:
        cells = (row[make] if isinstance(make, str) else make(row) for make in columns.values())
        table.add_row(*(cell if isinstance(cell, Text) else "" if cell is None else str(cell) for cell in cells))
    return table


def aligned_rows(title: str, rows: Sequence[Sequence[str]]) -> Text:
    """Return `rows` as aligned lines that look the same on terminals of any width. The first row has the headings."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return long_line("\n".join([title, *lines]))


def long_line(text: str) -> Text:
    """Return `text` in a form that is printed without wrapping, for example a path or a command to copy."""
    return Text(text, no_wrap=True, overflow="ignore")


class WordConsole(Console):
    """A console that neither crops text nor breaks short words, even if tables become wider than the terminal.

    Control characters are replaced, so names from files cannot control the terminal.
    """

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render with rich, then make all text printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)

    @property  # type: ignore[misc]  # it is never set
    def size(self) -> ConsoleDimensions:
        """Return the terminal's columns and lines. For a file or a pipe, the width is COLUMNS or else 80."""
        if self.is_terminal:
            return super().size
        return ConsoleDimensions(int(os.environ.get("COLUMNS") or PIPED_COLUMNS), 25)

    def print(self, *items: Any, **options: Any) -> None:
        """Print tables and texts as `rich` does, without cropping them. With `soft_wrap`, text is not wrapped."""
        for item in items:
            if isinstance(item, Text) and item.no_wrap:
                options.setdefault("soft_wrap", True)
        if not options.get("soft_wrap") and all(isinstance(item, str) for item in items):
            lines = (_wrapped_line(line, self.width) for item in items for line in item.split("\n"))
            items, options = ("\n".join(lines),), options | {"soft_wrap": True}
        wide = self.options.update(width=_WIDEST_COLUMNS)
        for column in (column for item in items if isinstance(item, Table) for column in item.columns):
            longest = max(Measurement.get(self, wide, cell).minimum for cell in (column.header, *column.cells))
            column.min_width = min(longest, _WHOLE_COLUMNS)
        super().print(*items, **({"crop": False} | options))


def _wrapped_line(text: str, columns: int) -> str:
    """Wrap `text` into lines of at most `columns` characters with the same indent, without breaking words."""
    indent = " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(text, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
