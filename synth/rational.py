"""Guessing the exact numbers behind a solver's floats, so that bounds made from them can meet."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

_LARGEST_DENOMINATOR = 1000
_CLOSE = 1e-9


def common_denominator(values: NDArray[np.float64], largest: int) -> int:
    """Return the least n up to `largest` that turns all `values` into whole numbers, nearly; 1 where there is none.

    A guess for choosing units in which rounding loses nothing; whatever it is, bounds stay bounds. O(values).
    """
    denominator = 1
    for value in np.unique(np.round(values, 10)).tolist():
        guess = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
        if abs(float(guess) - value) > _CLOSE * max(1.0, abs(value)):
            return 1
        denominator = lcm(denominator, guess.denominator)
        if denominator > largest:
            return 1
    return denominator
