"""Output of commands: results on stdout, as text or as one JSON document; notices, progress and logs on stderr."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from chorale.synth.executor.base import Progress
from chorale.synth.redaction import redacted
from chorale.tuner.reports.lazy_rich import LazyConsole

people = LazyConsole(stderr=True)
"""Notices and progress; silent with --quiet."""
results = LazyConsole(markup=False, highlight=False, emoji=False)
"""The result of a command, as a table or text on stdout; shown with --quiet too."""


def emit_json(document: Mapping[str, Any]) -> None:
    """Print exactly one JSON document on stdout."""
    sys.stdout.write(redacted(json.dumps(document, indent=2, allow_nan=False)) + "\n")
    sys.stdout.flush()


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """Choose what people see: `quiet` leaves errors and results only, `verbose` adds debug lines."""
    people.quiet = quiet
    if not verbose:
        warnings.showwarning = _show_warning
    level = logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO
    handler = _LazyHandler(verbose)
    handler.addFilter(_hide_secrets)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s", force=True)
    logging.getLogger("chorale").setLevel(level)
    # Each retry of an unreachable server would be a paragraph; the failure itself is reported anyway.
    logging.getLogger("urllib3").setLevel(logging.DEBUG if verbose else logging.ERROR)


def _show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
    """Print a warning of Python's as one notice, without the line of code that it comes from."""
    people.print(f"warning: {redacted(str(message))}", markup=False, highlight=False)


class _LazyHandler(logging.Handler):
    """Prints lines of the log to people, by rich, which is imported for the first of them."""

    def __init__(self, show_time: bool) -> None:
        super().__init__()
        self._show_time = show_time
        self._handler: logging.Handler | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        if self._handler is None:
            from rich.logging import RichHandler  # noqa: PLC0415 (slow)

            self._handler = RichHandler(
                console=people.console, show_path=False, show_time=self._show_time, markup=False
            )
            self._handler.setFormatter(self.formatter)
        self._handler.emit(record)


def _hide_secrets(record: logging.LogRecord) -> bool:
    """Let every line of the log show `***` for passwords in addresses, also those of libraries."""
    record.msg, record.args = redacted(record.getMessage()), ()
    return True


def print_error(message: str) -> None:
    """Print one line on stderr, even when quiet."""
    printable = message.encode(errors="backslashreplace").decode()  # names from the command line may be no UTF-8
    sys.stderr.write(f"chorale: {redacted(printable)}\n")


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield a progress callback that draws a bar on the terminal; None where stderr is no terminal."""
    if people.quiet or not people.is_terminal:
        yield None
        return
    from rich.progress import Progress as ProgressBar  # noqa: PLC0415 (slow)

    with ProgressBar(console=people.console, transient=True) as bar:
        row = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)


@contextmanager
def stage_display(title: str) -> Iterator[Callable[[str], AbstractContextManager[object]]]:
    """Yield an observer of stages, which shows on the terminal the one that has begun; nothing elsewhere."""
    if people.quiet or not people.is_terminal:
        yield lambda _stage: nullcontext()
        return
    with people.status(title) as status:

        def observe(stage: str) -> AbstractContextManager[object]:
            status.update(f"{title}: {stage}")
            return nullcontext()

        yield observe
