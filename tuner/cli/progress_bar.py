"""A bar for long work, where somebody watches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import Progress as ProgressBar

from chorale.synth.executor.base import Progress
from chorale.tuner.cli.output import people


@contextmanager
def progress_bar(title: str) -> Iterator[Progress | None]:
    """Yield a progress callback that draws a bar on the terminal; None where nobody watches."""
    if people.quiet or not people.is_terminal:
        yield None
        return
    with ProgressBar(console=people, transient=True) as bar:
        row = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(row, completed=done, total=total)
