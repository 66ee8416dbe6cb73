"""What the launches at a size say in the end: which program, how sure that is, or what deciding it would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Decision = Literal["program", "library", "undecided"]
"""A program is better than every baseline; none is by more than the tolerance; or neither is proved."""


@dataclass(frozen=True, slots=True)
class SizeVerdict:
    """The statement of a size.

    decision:     "program" and "library" hold with `confidence`; "undecided" says what is missing
    name:         of the program to run: proved to be faster than every baseline, None where none is
    baseline:     the fastest one
    leader:       the fastest program, proved or not; `speedup_*` are of it over the baseline, with `confidence`
    behind:       upper bound of how far what is to be run is behind the best that was measured: 0.02 is 2 %
    launches:     in which it was compared
    more_launches: how many more deciding would probably take, 0 where it is decided
    more_seconds: of measuring in these launches
    outliers:     `program in launch n`
    """

    size_bytes: int
    decision: Decision
    name: str | None
    baseline: str
    leader: str
    speedup: float
    speedup_low: float
    speedup_high: float
    behind: float
    launches: int
    confidence: float = 0.95
    more_launches: int = 0
    more_seconds: float = 0.0
    outliers: tuple[str, ...] = ()

    @property
    def is_decided(self) -> bool:
        return self.decision != "undecided"

    @property
    def has_interval(self) -> bool:
        """Whether the launches say how much times vary: one alone does not."""
        return self.launches > 1
