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


class LazyConsole:
    """A console that is made when it is first used; `quiet` can be set before."""

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
        self._console.quiet = self.quiet
        return self._console

    @property
    def is_terminal(self) -> bool:
        """Whether it is one; known without rich where nothing asks for colours and stderr is none."""
        if self._console is None and self._options.get("stderr") and not sys.stderr.isatty():
            return any(name in os.environ for name in _FORCING) and self.console.is_terminal
        return self.console.is_terminal

    def __getattr__(self, name: str) -> Any:
        return getattr(self.console, name)
