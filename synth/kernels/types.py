"""Defines type aliases for arrays with two and three axes, used in annotations such as `Matrix[np.int64]`."""

from typing import TypeVar

import numpy as np

T = TypeVar("T", bound=np.generic)

Matrix = np.ndarray[tuple[int, int], np.dtype[T]]
Table = np.ndarray[tuple[int, int, int], np.dtype[T]]
