"""How fast every rank can send to every other at the same time: the answer, with what proves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

RateMethod = Literal["lp", "pdhg"]


@dataclass(frozen=True, slots=True)
class AllToAllRate:
    """Exact bounds in the topology's bandwidth unit: each rank sends at this rate to every other.

    lower: reached by flows that were found, in whole numbers
    upper: no flows can be faster, by a set of link prices
    """

    lower: Fraction
    upper: Fraction
    method: RateMethod

    @property
    def rate(self) -> Fraction:
        """The rate that is known to be reached."""
        return self.lower

    @property
    def gap(self) -> Fraction:
        """upper / lower - 1: 0 when the rate is known exactly."""
        return self.upper / self.lower - 1


BoundsListener: TypeAlias = Callable[[Fraction, Fraction], None]
"""Hears the best (lower, upper) so far."""
