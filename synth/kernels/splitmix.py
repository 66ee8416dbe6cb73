"""Computes pseudo-random 64-bit numbers, the same on every machine, with SplitMix64 (Steele, Lea, Flood 2014)."""

import numpy as np
from numpy.typing import NDArray

STEP = np.uint64(0x9E3779B97F4A7C15)
"""Increment of the generator's state. It is odd, so its first 2^64 multiples are all different modulo 2^64."""

FIRST = np.uint64(0xBF58476D1CE4E5B9)
SECOND = np.uint64(0x94D049BB133111EB)


def splitmix(numbers: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Hash each number to a pseudo-random 64-bit number. Different numbers give different results."""
    values = numbers.astype(np.uint64)
    values = (values ^ (values >> np.uint64(30))) * FIRST
    values = (values ^ (values >> np.uint64(27))) * SECOND
    return values ^ (values >> np.uint64(31))
