"""Tables and lines of plain text as rich prints them into a file or pipe, without rich, which takes long to import."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.table import Table

_ONE_COLUMN_EACH = re.compile(r"[ -~\u00A1-\u00AC\u00AE-\u02AF\u2010-\u2027\u2030-\u205E\u20A0-\u20BF\u2200-\u22FF]*")
"""Characters that are one column wide in every terminal, none of which controls it."""
_PADDING = 1


@dataclass(frozen=True, slots=True)
class LightTable:
    """A table of strings that becomes one of rich only where it goes to a terminal or does not fit simply.

    headings: a row above the others, None for none; without lines there is none
    right:    columns that are aligned to the right
    """

    columns: int
    title: str
    headings: Sequence[str] | None = None
    title_justify: Literal["left", "center"] = "center"
    right: frozenset[int] = frozenset()
    has_lines: bool = True
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add_row(self, *cells: str) -> None:
        """Add a row of one string a column."""
        self.rows.append(cells)

    def to_rich(self) -> Table:
        """Return the same as a table of rich."""
        from rich import box  # noqa: PLC0415 (slow)
        from rich.table import Table  # noqa: PLC0415 (slow)

        table = Table(
            title=self.title,
            show_header=self.headings is not None,
            title_justify=self.title_justify,
            box=box.HEAVY_HEAD if self.has_lines else None,
        )
        for column, heading in enumerate(self.headings or [""] * self.columns):
            table.add_column(heading, justify="right" if column in self.right else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        return table

    def drawn(self, most_columns: int) -> str | None:
        """Return the lines of the table within `most_columns`, None where it does not fit unless words are broken."""
        cells = [row for row in (self.headings, *self.rows) if row is not None]
        if not self.rows or not all(is_plain(text) for text in (self.title, *(line for row in cells for line in row))):
            return None
        widths = self._widths(cells, most_columns)
        if widths is None:
            return None
        total = sum(widths) + 2 * _PADDING * self.columns + (self.columns + 1 if self.has_lines else 0)
        if len(self.title) > total:
            return None
        title = f"{self.title:<{total}}" if self.title_justify == "left" else _centred(self.title, total)
        return "\n".join([*([title] if self.title else []), *self._lines(widths)])

    def _widths(self, cells: Sequence[Sequence[str]], most_columns: int) -> list[int] | None:
        """Return the columns' widths: the widest cell, but of one that is wider than all others what is left for it."""
        widths = [max((len(row[column]) for row in cells), default=0) for column in range(self.columns)]
        lines = self.columns + 1 if self.has_lines else 0
        excess = sum(widths) + 2 * _PADDING * self.columns + lines - most_columns
        if excess <= 0:
            return widths
        widest = widths.index(max(widths))
        others = [*widths[:widest], *widths[widest + 1 :]]
        left = widths[widest] - excess
        longest_word = max(len(word) for row in cells for word in ("", *row[widest].split()))
        heading = 0 if self.headings is None else len(self.headings[widest])
        if left < max((longest_word, heading, *others)):
            return None
        return [*widths[:widest], left, *widths[widest + 1 :]]

    def _lines(self, widths: Sequence[int]) -> Iterator[str]:
        if not self.has_lines:
            for row in self.rows:
                yield from self._row(row, widths, ("", "", ""))
            return
        bars = [(width + 2 * _PADDING) for width in widths]
        if self.headings is None:
            yield "┌" + "┬".join("─" * bar for bar in bars) + "┐"
        else:
            yield "┏" + "┳".join("━" * bar for bar in bars) + "┓"
            yield from self._row(self.headings, widths, ("┃", "┃", "┃"))
            yield "┡" + "╇".join("━" * bar for bar in bars) + "┩"
        for row in self.rows:
            yield from self._row(row, widths, ("│", "│", "│"))
        yield "└" + "┴".join("─" * bar for bar in bars) + "┘"

    def _row(self, row: Sequence[str], widths: Sequence[int], edges: tuple[str, str, str]) -> Iterator[str]:
        wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
        for parts in zip_longest(*wrapped, fillvalue=""):
            cells = (
                f" {part:>{width}} " if column in self.right else f" {part:<{width}} "
                for column, (part, width) in enumerate(zip(parts, widths, strict=True))
            )
            yield edges[0] + edges[1].join(cells) + edges[2]


def facts_table(title: str) -> LightTable:
    """Return a table of names and values without rows."""
    return LightTable(2, title)


def wrapped_line(text: str, columns: int, indent: str = "") -> str:
    """Return `text` in lines of at most `columns`, each after `indent`, without breaking a word."""
    if len(indent) + len(text) <= columns:
        return indent + text
    return textwrap.fill(
        text,
        columns,
        initial_indent=indent,
        subsequent_indent=indent or " " * (len(text) - len(text.lstrip())),
        break_long_words=False,
        break_on_hyphens=False,
    )


def is_plain(text: str) -> bool:
    """Whether every character of `text` is one column wide in every terminal, and none controls it."""
    return _ONE_COLUMN_EACH.fullmatch(text) is not None


def _centred(text: str, width: int) -> str:
    left = (width - len(text)) // 2
    return f"{' ' * left}{text}".ljust(width)


def _wrapped(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width, break_long_words=False, break_on_hyphens=False)
