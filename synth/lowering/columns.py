"""Columns of numbers, and intervals in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]


def expanded(first: Column, length: Column) -> tuple[Column, Column]:
    """Return, for every member of every interval in order: the number of the interval, and the member."""
    row = np.repeat(np.arange(len(first)), length)
    within = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
    return row, first[row] + within
