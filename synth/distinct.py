"""Sets of values, without numpy.ma, which `numpy.unique` and `numpy.isin` import when they are first called so."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def distinct(values: NDArray[Number] | list[Any]) -> NDArray[Number]:
    """Return the different elements of `values`, which are no NaNs, in ascending order. O(n log n)."""
    ordered: NDArray[Number] = np.sort(np.asarray(values), axis=None)
    if len(ordered) == 0:
        return ordered
    first = np.empty(len(ordered), dtype=np.bool_)
    first[0] = True
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    return ordered[first]


def is_among(values: NDArray[Number], chosen: NDArray[Number]) -> NDArray[np.bool_]:
    """Return for each of `values` whether it is an element of `chosen`, which are no NaNs. O((n + m) log m)."""
    ordered = np.sort(chosen, axis=None)
    if len(ordered) == 0:
        return np.zeros(values.shape, dtype=np.bool_)
    found: NDArray[np.bool_] = ordered[np.searchsorted(ordered[:-1], values)] == values
    return found
