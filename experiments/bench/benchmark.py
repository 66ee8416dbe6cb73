"""What a benchmark is: cases with facts that never change and a ratio to a reference that ran beside them."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchmarkOutcome:
    """The outcome of a case.

    facts:  counts and certificates, as JSON has them; the same on every machine
    ratio:  how much better than the reference, above 1 where it is
    seconds: of what is measured and of the reference; empty where exact costs are compared
    peak_mb: the largest resident size of a process of its own, in 10**6 bytes
    """

    facts: Mapping[str, Any]
    ratio: float
    seconds: Mapping[str, float]
    peak_mb: float | None = None

    @staticmethod
    def of(facts: Mapping[str, Any], seconds: Mapping[str, float]) -> BenchmarkOutcome:
        """Return the outcome of what took the seconds `ours`, beside the seconds `reference`."""
        return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: `run` takes one of `cases`, and `goals` says what ratio each is meant to reach.

    is_exact: ratios are of exact costs, so that a missed goal is a regression and not a busy machine
    """

    name: str
    reference: str
    goals: Mapping[str, float]
    run: Callable[[str], BenchmarkOutcome]
    is_exact: bool

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases by name, in order."""
        return tuple(self.goals)


@dataclass(frozen=True, slots=True)
class Limit:
    """seconds: of two cores to itself; megabytes: of one process, None where nobody asked for any; before: in words."""

    seconds: float
    megabytes: float | None
    before: str


@functools.cache
def _all_limits() -> Mapping[str, Mapping[str, Limit]]:
    text = resources.files("chorale.experiments").joinpath("data/limits.json").read_text(encoding="utf-8")
    return {name: {case: Limit(*row) for case, row in cases.items()} for name, cases in json.loads(text).items()}


def limits_of(benchmark: str) -> Mapping[str, Limit]:
    """Return the limits of the cases of a benchmark, in order; empty where it has none."""
    return _all_limits().get(benchmark, {})


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
