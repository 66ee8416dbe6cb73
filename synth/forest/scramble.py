"""Numbers in no visible order, the same everywhere and in every version of every library."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))


def splitmix(numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return a number for each, different for different ones: the finalizer of SplitMix64 (Steele, Lea, Flood 2014)."""
    mixed = numbers.astype(np.uint64)
    for shift, factor in _ROUNDS:
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return mixed


def shuffled_order(count: int, seed: int) -> NDArray[np.int32]:
    """Return the numbers 0 to count - 1 in an order that depends on `seed` (at least 0)."""
    return np.argsort(splitmix(np.arange(count) + seed * count)).astype(np.int32)
