"""Rows of benchmarks as a table of a page: what was before, what is now, and how far that is from its limit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any

from chorale.experiments.bench.limits import Limit, limits_of

_HEAD = (
    "benchmark",
    "case",
    "before",
    "processor s",
    "passed s",
    "peak MB",
    "limit",
    "of the limit",
    "ratio",
    "beside",
)
_PROCESSOR = ("processor", "ours")
"""Names of the time of what is measured, in order of preference."""


def markdown_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a table in Markdown with a line for each row of a benchmark."""
    lines = [_HEAD, tuple("---" for _ in _HEAD), *map(_cells, rows)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    limit: Limit | None = limits_of(row["benchmark"]).get(row["case"])
    seconds: Mapping[str, float] = row["seconds"]
    processor_s = next((seconds[name] for name in _PROCESSOR if name in seconds), inf)
    passed_s = seconds.get("passed", inf)
    return (
        row["benchmark"],
        f"`{row['case']}`",
        limit.before if limit else "",
        _figure(processor_s),
        _figure(passed_s),
        "" if row["peak_mb"] is None else f"{row['peak_mb']:.0f}",
        _limit_text(limit),
        "" if limit is None else ", ".join(_parts(limit, min(processor_s, passed_s), row["peak_mb"])),
        f"{row['ratio']:.2f}",
        row["reference"],
    )


def _figure(seconds: float) -> str:
    return "" if seconds == inf else f"{seconds:.2f}"


def _parts(limit: Limit, seconds: float, peak_mb: float | None) -> Iterator[str]:
    """Yield which part of its limits a command takes: of time, and of memory where that has a limit."""
    yield f"{seconds / limit.seconds:.2f}"
    if limit.megabytes is not None and peak_mb is not None:
        yield f"{peak_mb / limit.megabytes:.2f}"


def _limit_text(limit: Limit | None) -> str:
    if limit is None:
        return ""
    return f"{limit.seconds:g} s" + ("" if limit.megabytes is None else f", {limit.megabytes:g} MB")
