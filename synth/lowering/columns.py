"""Columns of numbers, and intervals in them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.int64]
NarrowColumn = NDArray[np.int32]
"""What is held for all ranks at once: half as large. No count of a program comes near 2^31."""


def expand_intervals(first: Column, length: Column | NarrowColumn) -> tuple[Column, Column]:
    """Return, for every member of every interval in order: the number of the interval, and the member."""
    lengths = length.astype(np.int64)
    row = np.repeat(np.arange(len(first)), lengths)
    within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return row, first[row] + within
