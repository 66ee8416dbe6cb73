"""Output of commands: results on stdout, as text or as one JSON document; notices, progress and logs on stderr."""

import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import typer
from rich.logging import RichHandler
from rich.markup import escape
from rich.progress import Progress as ProgressBar

from chorale.synth.errors import printable
from chorale.synth.executor.base import Progress
from chorale.synth.redaction import redacted
from chorale.tuner.reports.tables import Result, WordConsole

people = WordConsole(stderr=True, markup=False, emoji=False)
"""Notices and progress; silent with --quiet."""
results = WordConsole(markup=False, highlight=False, emoji=False)
"""A command's result, as a table or text on stdout; also shown with --quiet."""


def emit_json(document: Mapping[str, Any]) -> None:
    """Print exactly one JSON document on stdout."""
    sys.stdout.write(redacted(json.dumps(document, indent=2, allow_nan=False)) + "\n")
    sys.stdout.flush()


def print_result(result: Result, as_json: bool) -> None:
    """Print warnings, then the result as JSON or text. Raises the result's failure, or exits with its exit code."""
    for warning in result.document.get("warnings", ()):
        people.print(f"warning: {warning['message']}", soft_wrap=True)
    if as_json:
        emit_json(result.document)
    else:
        for item in result.shown:
            results.print(item)
        if result.next_step is not None:
            notice(f"next: {result.next_step}")
    if result.failure is not None:
        raise result.failure
    if result.exit_code:
        raise typer.Exit(result.exit_code)


def notice(text: str) -> None:
    """Print a line unchanged on stderr, unless --quiet is given."""
    people.print(text, soft_wrap=True, highlight=False, markup=False)


def set_verbosity(quiet: bool, verbose: bool) -> None:
    """Set the verbosity: `quiet` shows only errors and results, `verbose` adds debug lines."""

    def show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
        people.print(f"warning: {redacted(str(message))}", markup=False, highlight=False)

    def hide_secrets(record: logging.LogRecord) -> bool:
        record.msg, record.args = redacted(record.getMessage()), ()  # also in lines of libraries
        return True

    people.quiet = quiet
    if not verbose:
        warnings.showwarning = show_warning  # without the line of code that caused it
    level = logging.ERROR if quiet else logging.DEBUG if verbose else logging.INFO
    handler = RichHandler(console=people, show_path=False, show_time=verbose, markup=False)
    handler.addFilter(hide_secrets)
    logging.basicConfig(level=logging.WARNING, handlers=[handler], format="%(message)s", force=True)
    logging.getLogger("chorale").setLevel(level)
    # Each retry of an unreachable server would be a paragraph; the failure itself is reported anyway.
    logging.getLogger("urllib3").setLevel(logging.DEBUG if verbose else logging.ERROR)


def print_error(message: str) -> None:
    """Print one line on stderr, even with --quiet."""
    text = message.encode(errors="backslashreplace").decode()  # names from the command line may not be valid UTF-8
    sys.stderr.write(f"chorale: {printable(redacted(text))}\n")


def is_watched() -> bool:
    """Return whether progress is shown: only on a terminal and without --quiet."""
    return people.is_terminal and not people.quiet


@contextmanager
def stage_bars() -> Iterator[Callable[[str], Progress | None]]:
    """Yield a function that starts a progress bar with a title and returns its callback (None if nothing is shown)."""
    if not is_watched():
        yield lambda _title: None
        return

    def begin(title: str) -> Progress:
        row = bar.add_task(escape(title), total=None)
        return lambda done, total: bar.update(row, completed=done, total=total)

    with ProgressBar(console=people, transient=True) as bar:
        yield begin


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield a progress callback that draws a bar on the terminal, or None if stderr is not a terminal."""
    with stage_bars() as begin:
        yield begin(title)


@contextmanager
def status_line(title: str) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a text after `title`; it does nothing unless progress is shown."""
    if not is_watched():
        yield lambda _text: None
        return
    with people.status(escape(title)) as status:
        yield lambda text: status.update(escape(f"{title}: {text}"))


@contextmanager
def stage_display(title: str) -> Iterator[Callable[[str], AbstractContextManager[object]]]:
    """Yield a function that shows the name of a stage after `title`, if progress is shown, and returns a context."""
    with status_line(title) as show:

        def observe(stage: str) -> AbstractContextManager[object]:
            show(stage)
            return nullcontext()

        yield observe
