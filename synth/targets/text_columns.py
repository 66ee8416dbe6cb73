"""Text of many rows of equal form at once: columns of numbers as decimals between words that stay the same.

Rows have a fixed width, filled up with NUL bytes, which are deleted in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from chorale.synth.programs.columns import Column

Words = NDArray[np.bytes_]
"""A word of each row, shorter ones filled up with NUL bytes."""

_DIGITS = 4
_TABLE = 10**_DIGITS
_MINUS_ONE = b"-1"


@cache
def _decimals(zeros: bool) -> Words:
    """Return the decimals of 0 to 9999, with leading zeros or without, and last -1, which is what index -1 finds."""
    pattern = f"{{:0{_DIGITS}}}" if zeros else "{}"
    return np.array([*(pattern.format(number).encode() for number in range(_TABLE)), _MINUS_ONE])


def decimals(numbers: Column) -> Words:
    """Return each of `numbers`, which are at least -1, in decimal. O(numbers)."""
    if numbers.max(initial=0) < _TABLE:
        return _decimals(zeros=False)[numbers]
    high, low = np.divmod(np.maximum(numbers, 0), _TABLE)
    short = numbers < _TABLE
    leading = np.where(short, b"", decimals(high))
    trailing = np.where(short, _decimals(zeros=False)[np.where(short, numbers, 0)], _decimals(zeros=True)[low])
    pairs = np.zeros(len(numbers), dtype=[("leading", leading.dtype), ("trailing", trailing.dtype)])
    pairs["leading"], pairs["trailing"] = leading, trailing
    return pairs.view(f"S{pairs.dtype.itemsize}")


def words_where(chosen: NDArray[np.bool_], words: Words) -> Words:
    """Return `words`, one for each row that is `chosen`, and nothing in the other rows."""
    result = np.zeros(len(chosen), dtype=words.dtype)
    result[chosen] = words
    return result


def rows_text(
    parts: Sequence[bytes | Words], rows: int, continued: NDArray[np.bool_] | None = None, last: int = 0
) -> bytes:
    """Return the text of `rows` rows, each of which has all of `parts`: the same bytes, or a word of its own.

    Rows that are `continued` have the `last` parts only. O(rows * bytes of the longest row).
    """
    widths = [len(part) if isinstance(part, bytes) else part.dtype.itemsize for part in parts]
    form = np.dtype([(f"{index}", f"S{width}") for index, width in enumerate(widths)])
    template = b"".join(part if isinstance(part, bytes) else bytes(part.dtype.itemsize) for part in parts)
    text = bytearray(template * rows)
    table = np.frombuffer(text, dtype=form)
    for index, part in enumerate(parts):
        if not isinstance(part, bytes):
            table[f"{index}"] = part
    if continued is not None:
        first = sum(widths[:-last])
        np.frombuffer(text, dtype=np.uint8).reshape(rows, form.itemsize)[continued, :first] = 0
    return bytes(text.translate(None, b"\0"))
