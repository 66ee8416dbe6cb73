"""What every instruction of an execution took on every rank.

Times are seconds after the common start of all ranks, on each rank's own clock: aligned as far as starts are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StepSpan:
    """One instruction; with several parts one of them, and with several pieces of a part one of these.

    ready_s: its waits were met and its block had come to it
    start_s: its first byte moved
    end_s:   it was finished
    """

    block: int
    step: int
    part: int
    piece: int
    ready_s: float
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank: when it began and had its result, processor time of its thread, and its instructions as they ended."""

    start_s: float
    end_s: float
    cpu_s: float
    steps: tuple[StepSpan, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values; times of steps in whole nanoseconds, to be short."""
        steps = [
            [span.block, span.step, span.part, span.piece, *(round(t * 1e9) for t in _times_of(span))]
            for span in self.steps
        ]
        return {"start_s": self.start_s, "end_s": self.end_s, "cpu_s": self.cpu_s, "steps": steps}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> RankTrace:
        """Return what `to_json` wrote, to the nanosecond."""
        spans = (StepSpan(*step[:4], *(ns / 1e9 for ns in step[4:])) for step in value["steps"])
        return RankTrace(value["start_s"], value["end_s"], value["cpu_s"], tuple(spans))


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """One execution of a program on all ranks."""

    name: str
    size_bytes: int
    ranks: tuple[RankTrace, ...]

    @property
    def time_s(self) -> float:
        """From the common start to the end of the last rank."""
        return max(rank.end_s for rank in self.ranks)


def _times_of(span: StepSpan) -> tuple[float, float, float]:
    return span.ready_s, span.start_s, span.end_s


def median_trace(traces: Sequence[ExecutionTrace]) -> ExecutionTrace:
    """Return that of `traces`, which are not empty, whose time is the median; the lower one of two."""
    return sorted(traces, key=lambda trace: trace.time_s)[(len(traces) - 1) // 2]
