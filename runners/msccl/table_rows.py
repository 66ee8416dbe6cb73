"""Rows of the tables that nccl-tests and rccl-tests print, of all generations."""

from __future__ import annotations

import re
from dataclasses import dataclass

_ERROR_COLUMNS = 12  # up to 2.11: no root, and an error instead of a count of wrong elements
_PLAIN_COLUMNS = 13
_DATED_COLUMNS = 15  # with -S: date and time at the end
_ITERATION_COLUMNS = 21  # with -I: four more after each count of wrong elements

_WHOLE = re.compile(r"[0-9]+")
_ROOT = re.compile(r"-1|[0-9]+")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_NUMBER = re.compile(r"[0-9.]+(e[+-]?[0-9]+)?|N/A|nan|inf")


@dataclass(frozen=True, slots=True)
class TableCell:
    """One placement of a row. time_us: None if it was not measured. wrong: elements, None if that is not known."""

    time_us: float | None
    wrong: int | None


@dataclass(frozen=True, slots=True)
class TableRow:
    """Size in bytes as the test program counts it; root -1 or None where the collective has none."""

    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int | None
    out_of_place: TableCell
    in_place: TableCell


def parse_row(line: str) -> TableRow | None:
    """Return the row that `line` is, None if it is none."""
    words = line.split()
    if len(words) not in (_ERROR_COLUMNS, _PLAIN_COLUMNS, _DATED_COLUMNS, _ITERATION_COLUMNS):
        return None
    has_root = len(words) != _ERROR_COLUMNS
    if not _is_head(words[: 5 if has_root else 4], has_root):
        return None
    cells = words[5 if has_root else 4 :]
    if len(words) == _DATED_COLUMNS:
        cells = cells[:-2]
    if not all(_NUMBER.fullmatch(cell.rstrip("*")) for cell in cells):
        return None
    half = len(cells) // 2
    return TableRow(
        size_bytes=int(words[0]),
        count=int(words[1]),
        dtype=words[2],
        redop=words[3],
        root=int(words[4]) if has_root else None,
        out_of_place=_cell(cells[:half], has_root),
        in_place=_cell(cells[half:], has_root),
    )


def is_part_of_row(line: str) -> bool:
    """Return whether `line` may be the beginning of a row whose rest comes in another line."""
    words = line.split()
    heads = (words[:5], True), (words[:4], False)
    return any(
        len(head) == (5 if has_root else 4)
        and _is_head(head, has_root)
        and all(_NUMBER.fullmatch(word.rstrip("*")) for word in words[len(head) :])
        for head, has_root in heads
    )


def _is_head(words: list[str], has_root: bool) -> bool:
    shapes = [_WHOLE, _WHOLE, _WORD, _WORD, _ROOT][: 5 if has_root else 4]
    return all(shape.fullmatch(word) for shape, word in zip(shapes, words, strict=True))


def _cell(words: list[str], counts_wrong: bool) -> TableCell:
    """Return the cell of `time algbw busbw #wrong`; a star marks what the program itself calls too far off."""
    time_us = None if words[0] == "N/A" else float(words[0])
    mark, wrong = words[3], None
    if mark.rstrip("*") != "N/A":
        number = float(mark.rstrip("*"))
        if counts_wrong or number == 0:
            wrong = round(number)
        if mark.endswith("*"):
            wrong = max(1, wrong or 0)
    return TableCell(time_us, wrong)
