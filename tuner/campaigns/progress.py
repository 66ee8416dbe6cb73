"""What people see while a campaign runs: a live table, plain lines, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from runners.sizes import format_size
from tuner.campaigns.records import CompleteTrial, FailedTrial, TrialRecord

Clock = Callable[[], float]
RECENT = 6


class Progress(Protocol):
    """Hears of every finished trial; a context manager around the whole run."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def trial(self, record: TrialRecord) -> None:
        """Show a trial that has just finished."""
        ...


class _Tally:
    """Counts, the best so far and the time left."""

    def __init__(self, budget: int, already: int, clock: Clock) -> None:
        self.budget = budget
        self.done = already
        self.best: CompleteTrial | None = None
        self._new = 0
        self._clock = clock
        self._started_s = clock()

    def add(self, record: TrialRecord) -> None:
        self.done += 1
        self._new += 1
        if isinstance(record, CompleteTrial) and (self.best is None or record.speedup > self.best.speedup):
            self.best = record

    @property
    def time_left(self) -> str:
        if not self._new:
            return "…"
        seconds = (self._clock() - self._started_s) / self._new * max(0, self.budget - self.done)
        return f"{int(seconds // 60)}:{int(seconds % 60):02d}"

    def __str__(self) -> str:
        best = f", best {self.best.speedup:.2f}x {self.best.candidate}" if self.best else ""
        return f"trial {self.done}/{self.budget}, about {self.time_left} left{best}"


class PlainLines:
    """One line per trial, for logs and pipes."""

    def __init__(self, console: Console, budget: int, already: int, clock: Clock = time.monotonic) -> None:
        self._console = console
        self._tally = _Tally(budget, already, clock)

    def __enter__(self) -> PlainLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def trial(self, record: TrialRecord) -> None:
        self._tally.add(record)
        text = f"{record.candidate}: {outcome_text(record)}  ({self._tally})"
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveTable:
    """A table of the latest trials that is drawn in place, for terminals."""

    def __init__(self, console: Console, budget: int, already: int, clock: Clock = time.monotonic) -> None:
        self._tally = _Tally(budget, already, clock)
        self._recent: list[TrialRecord] = []
        self._live = Live(self._view(), console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> LiveTable:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def trial(self, record: TrialRecord) -> None:
        self._tally.add(record)
        self._recent = [*self._recent, record][-RECENT:]
        self._live.update(self._view())

    def _view(self) -> Group:
        table = Table("trial", "candidate", "outcome", box=None, pad_edge=False)
        for record in self._recent:
            table.add_row(str(record.number), Text(str(record.candidate)), Text(outcome_text(record)))
        return Group(table, Text(str(self._tally)))


def outcome_text(record: TrialRecord) -> str:
    """Return what came of a trial, in a few words."""
    if isinstance(record, CompleteTrial):
        times = ", ".join(f"{format_size(size.size_bytes)} {size.median_s * 1e3:.3g} ms" for size in record.sizes)
        return f"{record.speedup:.2f}x ({times})"
    if isinstance(record, FailedTrial):
        return f"failed, {record.failure_kind.value}: {record.message}"
    return f"pruned: {record.reason}"


def progress_for(console: Console, budget: int, already: int) -> Progress:
    """Return the display that suits `console`; a quiet console swallows the plain lines."""
    if console.is_terminal and not console.quiet:
        return LiveTable(console, budget, already)
    return PlainLines(console, budget, already)
