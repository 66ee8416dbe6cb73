"""A printed number beside ours: the same within its digits, or who is ahead."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Literal

Verdict = Literal["match", "better", "worse", "impossible"]
"""Of our number: "impossible" says that no schedule, or no flow, on that network can reach the printed one."""


@dataclass(frozen=True, slots=True)
class Interval:
    """What a number is known to lie in; a single point where it is known exactly."""

    low: Fraction
    high: Fraction

    @classmethod
    def exactly(cls, value: Fraction | int) -> Interval:
        return cls(Fraction(value), Fraction(value))

    def meets(self, other: Interval) -> bool:
        return self.low <= other.high and other.low <= self.high


def digits_of(text: str) -> Interval:
    """Return what a number printed as `text` may have been before rounding: half a unit of its last digit each way.

    Counts of steps keep apart from one another that way too.
    """
    printed = Decimal(text)
    exponent = printed.as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError(f"not a finite number: {text}")
    half = Fraction(10) ** exponent / 2
    return Interval(Fraction(printed) - half, Fraction(printed) + half)


def judge(printed: str, ours: Interval, limit: Fraction | int | None = None, smaller_is_better: bool = True) -> Verdict:
    """Return how `ours` compares with what was `printed`.

    limit: what nothing on the same network can beat, if that is known
    """
    digits = digits_of(printed)
    if ours.meets(digits):
        return "match"
    ahead = ours.high < digits.low if smaller_is_better else ours.low > digits.high
    if ahead:
        return "better"
    beyond = limit is not None and (digits.high < limit if smaller_is_better else digits.low > limit)
    return "impossible" if beyond else "worse"
