"""In which order the steps of the dimensions of a grid take place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Turn(NamedTuple):
    """Step `number` of dimension `axis`; of the data only piece `piece` out of `pieces` equal ones."""

    axis: int
    number: int
    piece: int = 0
    pieces: int = 1


def round_robin(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return one step of each dimension after the other, beginning with dimension `first`; finished ones are skipped.

    Source: Swing paper, sections 4.1 and 4.2 (omega and sigma).
    """
    dimensions = _from(first, len(step_counts))
    rounds = range(max(step_counts, default=0))
    return [Turn(axis, number) for number in rounds for axis in dimensions if number < step_counts[axis]]


def dimension_by_dimension(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return all steps of a dimension, then all of the next, beginning with dimension `first`."""
    return [Turn(axis, number) for axis in _from(first, len(step_counts)) for number in range(step_counts[axis])]


def synchronised_dimensions(step_counts: Sequence[int], first: int) -> list[Turn | None]:
    """Return `one_by_one`, with every dimension drawn out to as many steps as the longest one.

    Collectives that begin in other dimensions then change dimension at the same time and never share links. The
    steps of a shorter dimension are done in pieces, as many as there is time for, so that its larger blocks do
    not hold up the others in any step; None stands for a step of waiting. Source: Swing paper, section 5.2.
    """
    longest = max(step_counts)
    turns: list[Turn | None] = []
    for axis in _from(first, len(step_counts)):
        pieces = longest // step_counts[axis]
        steps = range(step_counts[axis])
        turns += [Turn(axis, number, piece, pieces) for number in steps for piece in range(pieces)]
        turns += [None] * (longest - pieces * step_counts[axis])
    return turns


def _from(first: int, count: int) -> list[int]:
    return [(first + offset) % count for offset in range(count)]
