"""The different values of an array, without numpy.ma, which `numpy.unique` imports when it is first called so."""

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
