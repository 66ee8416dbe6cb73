"""What a benchmark is: cases with facts that never change and a ratio to a reference that ran beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchmarkOutcome:
    """The outcome of a case.

    facts:  counts and certificates, as JSON has them; the same on every machine
    ratio:  how much better than the reference, above 1 where it is
    seconds: of what is measured and of the reference; empty where exact costs are compared
    peak_mb: the largest resident size of a process of its own, in 10**6 bytes
    """

    facts: Mapping[str, Any]
    ratio: float
    seconds: Mapping[str, float]
    peak_mb: float | None = None

    @staticmethod
    def of(facts: Mapping[str, Any], seconds: Mapping[str, float]) -> BenchmarkOutcome:
        """Return the outcome of what took the seconds `ours`, beside the seconds `reference`."""
        return BenchmarkOutcome(facts, seconds["reference"] / seconds["ours"], seconds)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: `run` takes one of `cases`, and `goals` says what ratio each is meant to reach.

    is_exact: ratios are of exact costs, so that a missed goal is a regression and not a busy machine
    """

    name: str
    reference: str
    goals: Mapping[str, float]
    run: Callable[[str], BenchmarkOutcome]
    is_exact: bool

    @property
    def cases(self) -> tuple[str, ...]:
        """The cases by name, in order."""
        return tuple(self.goals)
