"""Tables and the console that prints them, and what every report ends in: a `Result`."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from rich import box
from rich.console import Console, ConsoleDimensions, Group
from rich.table import Table
from rich.text import Text

from chorale.synth.errors import ChoraleError

PIPED_COLUMNS = 80
"""Width of output that goes to a file or a pipe, unless COLUMNS says another one."""


@dataclass(frozen=True, slots=True, init=False)
class Result:
    """The result of an operation.

    document:  printed by `--json`, sent over HTTP
    shown:     tables and texts for people, in this order
    exit_code: 0; 1 if the thing asked about is false
    failure:   raised after the result is printed, to say what is false
    """

    document: Mapping[str, Any]
    shown: tuple[Table | Text | str, ...]
    exit_code: int
    failure: ChoraleError | None

    def __init__(
        self,
        document: Mapping[str, Any],
        *shown: Table | Text | str,
        exit_code: int = 0,
        failure: ChoraleError | None = None,
    ) -> None:
        object.__setattr__(self, "document", document)
        object.__setattr__(self, "shown", shown)
        object.__setattr__(self, "exit_code", exit_code)
        object.__setattr__(self, "failure", failure)


def facts_table(title: str, rows: Iterable[tuple[str, str]] = ()) -> Table:
    """Return a table of names and values."""
    table = Table(title=title, show_header=False)
    for row in rows:
        table.add_row(*row)
    return table


def ruled_table(*headings: str, **options: Any) -> Table:
    """Return a table with a line below its head only."""
    return Table(*headings, box=box.SIMPLE_HEAD, **options)


def numbers_table(title: str, first: str, *headings: str, **options: Any) -> Table:
    """Return a table whose columns, except the `first`, are aligned to the right and never wrapped."""
    table = Table(title=title, **options)
    table.add_column(first, overflow="fold")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def long_line(text: str) -> Text:
    """Return a line that is printed as it is, such as a path or a command to copy."""
    return Text(text, no_wrap=True, overflow="ignore")


class WordConsole(Console):
    """A console that never breaks words: a table that is too narrow for one is printed as a block of lines per row."""

    @property  # type: ignore[misc]  # nobody sets it
    def size(self) -> ConsoleDimensions:
        """Columns and lines of the terminal; of a file or a pipe, COLUMNS or 80 columns."""
        if self.is_terminal:
            return super().size
        return ConsoleDimensions(int(os.environ.get("COLUMNS") or PIPED_COLUMNS), 25)

    def print(self, *items: Any, **options: Any) -> None:
        """Print tables and texts as `rich` does, but whole words only; with `soft_wrap` a text as it is."""
        if any(isinstance(item, Text) and item.no_wrap for item in items):
            options.setdefault("soft_wrap", True)
        if not options.get("soft_wrap"):
            items = tuple(_fitting(item, self) for item in items)
        # Lines have the right width by now; only tables, whose cells are wrapped by rich, must not go beyond it.
        is_text = all(isinstance(item, str) for item in items)
        super().print(*items, **({"soft_wrap": True} if is_text else {"crop": False}) | options)


def _fitting(item: Any, console: Console) -> Any:
    """Return what `console` shows of a table or a string: whole words, and a block per row of a table too wide."""
    if isinstance(item, str):
        return "\n".join(_wrapped_line(line, console.width) for line in item.split("\n"))
    if not isinstance(item, Table) or _is_whole(item, console):
        return item
    blocks = list(_blocks(item, console))
    for text in blocks:  # their lines have the right width, except where a word is longer
        text.no_wrap, text.overflow = True, "ignore"
    return Group(*blocks)


def _is_whole(table: Table, console: Console) -> bool:
    """Return whether every word of the cells stands unbroken in the table as it would be printed; log lines do."""
    contents = [cell for column in table.columns for cell in (column.header, *column.cells)]
    if not all(isinstance(cell, str | Text) for cell in contents):
        return True
    lines = console.render_lines(table, console.options, pad=False)
    printed = {word for line in lines for word in "".join(segment.text for segment in line).split()}
    return all(word in printed for cell in contents for word in _text(cell, console).plain.split())


def _blocks(table: Table, console: Console) -> Iterator[Text]:
    """Yield title, rows and caption: of each row its first cell, and below it the others next to their headings."""
    headings = [" ".join(_text(column.header, console).plain.split()) for column in table.columns]
    if table.title:
        yield _text(table.title, console)
    rows = list(zip_longest(*([_text(cell, console) for cell in column.cells] for column in table.columns)))
    if not table.show_header and len(headings) == 2:
        width = max((row[0].cell_len for row in rows), default=0)
        for name, value in rows:
            yield _line(name.plain, value.plain, width, console.width)
    else:
        width = max(map(len, headings))
        for first, *others in rows:
            yield Text(f"{headings[0]} {first.plain}") if first.plain.isdecimal() and headings[0] else first
            for heading, cell in zip(headings[1:], others, strict=True):
                if cell is not None and cell.plain:
                    yield _line(f"  {heading}", cell.plain, width + 2, console.width)
    if table.caption:
        yield Text(_wrapped_line(_text(table.caption, console).plain, console.width))


def _line(name: str, value: str, width: int, columns: int) -> Text:
    """Return a name and, from column `width` on, its value, within `columns` if its words allow."""
    indent = " " * (width + 2)
    lines = [_wrapped_line(line, columns, indent) for line in value.split("\n")]
    return Text("\n".join([f"{name:{width}}  {lines[0].lstrip()}", *lines[1:]]).rstrip())


def _wrapped_line(text: str, columns: int, indent: str = "") -> str:
    """Return `text` in lines of at most `columns`, each after `indent`, without breaking a word."""
    if len(indent) + len(text) <= columns:
        return indent + text
    inner = indent or " " * (len(text) - len(text.lstrip()))
    return textwrap.fill(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=inner,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _text(cell: Any, console: Console) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(str(cell))
