"""The report of a job, by rank 0: at its end, and while it runs."""

from __future__ import annotations

import atexit
import json
import sys
from functools import cache
from pathlib import Path

from chorale.job import current_report, report
from chorale.job.report import report_line
from chorale.job.torch.periodic import PeriodicThread
from chorale.job.whole_files import write_whole


@cache
def report_at_end(where: str | None) -> ReportAtEnd:
    """Return the one of this process that writes to `where`."""
    return ReportAtEnd(where)


class ReportAtEnd:
    """Writes the report when it is called, and at the end of the process if something was counted since.

    where: a file, - for a line on stderr, None for nothing
    """

    def __init__(self, where: str | None) -> None:
        self._where = where
        self._written = ""
        if where is not None:
            atexit.register(self)

    def __call__(self) -> None:
        """Write what was counted so far, unless it is written already."""
        text = json.dumps(report(), indent=1) + "\n"
        if self._where is None or text == self._written:
            return
        self._written = text
        try:
            self._write(text)
        except OSError as error:  # a job that did its work does not fail on its report
            sys.stderr.write(f"chorale: the report could not be written: {error}\n")

    def _write(self, text: str) -> None:
        if self._where == "-":
            sys.stderr.write(f"{report_line(report())}\n")
        else:
            Path(str(self._where)).write_text(text, encoding="utf-8")


class StatusFile:
    """Keeps a file up to date with the report of this process, and calls and seconds by size, until it is closed.

    Whoever watches the job reads it; each version replaces the one before as a whole.
    """

    def __init__(self, path: Path, period_s: float = 1.0) -> None:
        self._path = path
        self._thread = PeriodicThread("chorale-status", period_s, self._write)

    def close(self) -> None:
        """Write it once more and end. Safe to call twice."""
        self._thread.close()
        self._write()

    def _write(self) -> bool:
        record = {**report(), "sizes": current_report().sizes()}
        try:
            write_whole(self._path, json.dumps(record).encode())
        except OSError as error:  # a job that does its work does not fail on who watches it
            sys.stderr.write(f"chorale: the status could not be written: {error}\n")
        return True
