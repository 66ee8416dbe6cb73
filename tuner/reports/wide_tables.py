"""Tables of which a word would not fit: every row as lines of their own, so that nothing is cut or broken."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from chorale.tuner.reports.light_table import wrapped_line


def fitting(renderable: Any, console: Console) -> Any:
    """Return what `console` shows of a table or a string: whole words, and a block per row of a table too wide."""
    if isinstance(renderable, str):
        return "\n".join(wrapped_line(line, console.width) for line in renderable.split("\n"))
    if not isinstance(renderable, Table):
        return renderable
    return renderable if _is_whole(renderable, console) else Group(*map(_unbroken, _blocks(renderable, console)))


def _unbroken(text: Text) -> Text:
    """Return lines of the right width as they are, also where a word goes beyond it."""
    text.no_wrap, text.overflow = True, "ignore"
    return text


def _is_whole(table: Table, console: Console) -> bool:
    """Return whether every word of the cells stands unbroken in the table as it would be printed."""
    lines = console.render_lines(table, console.options, pad=False)
    printed = {word for line in lines for word in "".join(segment.text for segment in line).split()}
    cells = (_text(cell, console).plain for column in table.columns for cell in (column.header, *column.cells))
    return all(word in printed for cell in cells for word in cell.split())


def _blocks(table: Table, console: Console) -> Iterator[Text]:
    """Yield title, rows and caption: of each row its first cell, and below it the others beside their headings."""
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
        yield Text(wrapped_line(_text(table.caption, console).plain, console.width))


def _line(name: str, value: str, width: int, columns: int) -> Text:
    """Return a name and, from column `width` on, its value, within `columns` where its words allow."""
    indent = " " * (width + 2)
    lines = [wrapped_line(line, columns, indent) for line in value.split("\n")]
    return Text("\n".join([f"{name:{width}}  {lines[0].lstrip()}", *lines[1:]]).rstrip())


def _text(cell: Any, console: Console) -> Text:
    return cell if isinstance(cell, Text) else console.render_str(str(cell))
