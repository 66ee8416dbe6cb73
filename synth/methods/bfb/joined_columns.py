"""Parts of columns that are joined in their order while others are still being computed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Columns = Sequence[NDArray[np.unsignedinteger]]


class JoinedColumns:
    """Copies each part behind those before it as soon as these are there; `rows` is how many there will be, nearly."""

    def __init__(self, types: Sequence[np.dtype], rows: int) -> None:
        self._columns: list[NDArray[np.unsignedinteger]] = [np.empty(rows, dtype=dtype) for dtype in types]
        self._waiting: dict[int, Columns] = {}
        self._parts = self._rows = 0

    def add(self, number: int, part: Columns) -> None:
        """Take part `number`, counted from 0; each number comes once, in any order."""
        self._waiting[number] = part
        while self._parts in self._waiting:
            self._append(self._waiting.pop(self._parts))
            self._parts += 1

    def joined(self) -> Columns:
        """Return the columns of all parts, which must have come."""
        if self._waiting:
            raise ValueError(f"part {self._parts} is missing")
        return [column[: self._rows] for column in self._columns]

    def _append(self, part: Columns) -> None:
        end = self._rows + len(part[0])
        if end > len(self._columns[0]):
            self._columns = [_longer(column, end + end // 2) for column in self._columns]
        for column, rows in zip(self._columns, part, strict=True):
            column[self._rows : end] = rows
        self._rows = end


def _longer(column: NDArray[np.unsignedinteger], length: int) -> NDArray[np.unsignedinteger]:
    longer = np.empty(length, dtype=column.dtype)
    longer[: len(column)] = column
    return longer
