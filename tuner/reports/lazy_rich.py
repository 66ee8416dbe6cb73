"""Tables and consoles of rich, which is imported when something is printed: commands with --json never wait for it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from chorale.tuner.reports.light_table import LightTable, is_plain, wrapped_line

__all__ = ["LazyConsole", "Table", "ruled_table"]

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
else:

    def Table(*headers: Any, **options: Any) -> Any:  # noqa: N802 (stands for the class)
        """Return a table of rich."""
        from rich.table import Table as RichTable  # noqa: PLC0415 (slow)

        return RichTable(*headers, **options)


def ruled_table(*headers: str, **options: Any) -> Table:
    """Return a table with a line below its head only."""
    from rich import box  # noqa: PLC0415 (slow)

    return Table(*headers, box=box.SIMPLE_HEAD, **options)


_FORCING = ("FORCE_COLOR", "TTY_COMPATIBLE")
"""Variables by which rich takes a file for a terminal."""


PIPED_COLUMNS = 80
"""Width of what goes to a file or a pipe, where COLUMNS does not say another one."""


class LazyConsole:
    """A console that is made when it is first used; `quiet` can be set before.

    Words are never broken: a table in which one does not fit is printed as a block of lines per row.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._console: Console | None = None
        self.quiet = False

    @property
    def console(self) -> Console:
        """The console itself."""
        if self._console is None:
            from rich.console import Console  # noqa: PLC0415 (slow)

            self._console = Console(**self._options)
            if not self._console.is_terminal and "COLUMNS" not in os.environ:
                self._console.width = PIPED_COLUMNS  # not that of the terminal which the other streams have
        self._console.quiet = self.quiet
        return self._console

    def print(self, *items: Any, **options: Any) -> None:
        """Print tables and texts as `rich` does, but whole words only; with `soft_wrap` a text as it is."""
        if self.quiet:
            return
        if len(items) == 1 and options in ({}, {"soft_wrap": True}) and self._takes_plain_text():
            text = _plain_text(items[0], None if options else _piped_columns())
            if text is not None:
                self._write(text)
                return
        items = tuple(item.to_rich() if isinstance(item, LightTable) else item for item in items)
        if not options.get("soft_wrap"):
            from chorale.tuner.reports.wide_tables import fitting  # noqa: PLC0415 (slow)

            items = tuple(fitting(item, self.console) for item in items)
        # Lines have the right width by now; only tables, whose cells are wrapped by rich, must not go beyond it.
        is_text = all(isinstance(item, str) for item in items)
        self.console.print(*items, **({"soft_wrap": True} if is_text else {"crop": False}) | options)

    def _takes_plain_text(self) -> bool:
        """Whether results go to a file or pipe as UTF-8, and rich, if it is there already, would not style them."""
        is_stdout = self._options.get("markup") is False and self._options.get("highlight") is False
        is_forced = any(name in os.environ for name in _FORCING)
        if not is_stdout or self._console is not None or is_forced or not os.environ.get("COLUMNS", "0").isdigit():
            return False
        return not sys.stdout.isatty() and (sys.stdout.encoding or "").lower().startswith("utf")

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()
        except BrokenPipeError:
            self.console.on_broken_pipe()

    @property
    def is_terminal(self) -> bool:
        """Whether it is one; known without rich where nothing asks for colours and stderr is none."""
        if self._console is None and self._options.get("stderr") and not sys.stderr.isatty():
            return any(name in os.environ for name in _FORCING) and self.console.is_terminal
        return self.console.is_terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)


def _piped_columns() -> int:
    return int(os.environ.get("COLUMNS", PIPED_COLUMNS)) or PIPED_COLUMNS


def _plain_text(item: object, columns: int | None) -> str | None:
    """Return what rich would print of a table or text within `columns` (None: as it is); None where rich must do it."""
    if isinstance(item, LightTable):
        return item.drawn(_piped_columns() if columns is None else columns)
    if not isinstance(item, str):
        return None
    lines = item.split("\n")
    if not all(is_plain(line) and line == line.rstrip() for line in lines):
        return None
    return item if columns is None else "\n".join(wrapped_line(line, columns) for line in lines)
