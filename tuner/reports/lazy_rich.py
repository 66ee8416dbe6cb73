"""Tables and consoles of rich, which is imported when something is printed: commands with --json never wait for it."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

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
        if not options.get("soft_wrap"):
            from chorale.tuner.reports.wide_tables import fitting  # noqa: PLC0415 (slow)

            items = tuple(fitting(item, self.console) for item in items)
        # Lines have the right width by now; only tables, whose cells are wrapped by rich, must not go beyond it.
        is_text = all(isinstance(item, str) for item in items)
        self.console.print(*items, **({"soft_wrap": True} if is_text else {"crop": False}) | options)

    @property
    def is_terminal(self) -> bool:
        """Whether it is one; known without rich where nothing asks for colours and stderr is none."""
        if self._console is None and self._options.get("stderr") and not sys.stderr.isatty():
            return any(name in os.environ for name in _FORCING) and self.console.is_terminal
        return self.console.is_terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)
