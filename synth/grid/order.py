"""In which order the steps of the dimensions of a grid take place."""

from __future__ import annotations

from collections.abc import Sequence

Turn = tuple[int, int]
"""(dimension, number of the step in it)."""


def in_turns(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return one step of each dimension after the other, beginning with dimension `first`; finished ones are skipped.

    Source: Swing paper, sections 4.1 and 4.2 (omega and sigma).
    """
    dimensions = _from(first, len(step_counts))
    rounds = range(max(step_counts, default=0))
    return [(axis, number) for number in rounds for axis in dimensions if number < step_counts[axis]]


def one_by_one(step_counts: Sequence[int], first: int, synchronised: bool) -> list[Turn | None]:
    """Return all steps of a dimension, then all of the next, beginning with dimension `first`.

    `synchronised`: nobody goes on before the longest dimension is through, for collectives that begin elsewhere
    would share links otherwise; None stands for a step of waiting. Source: Swing paper, section 5.2.
    """
    turns: list[Turn | None] = []
    for axis in _from(first, len(step_counts)):
        turns += [(axis, number) for number in range(step_counts[axis])]
        turns += [None] * (max(step_counts) - step_counts[axis] if synchronised else 0)
    return turns


def _from(first: int, count: int) -> list[int]:
    return [(first + offset) % count for offset in range(count)]
