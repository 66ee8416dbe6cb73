"""When the rest of a measurement is not worth its time."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Race:
    """A program against the best known ratios of its competitors to the same references.

    name, references: of results of the measurement
    ratios:           by size, the lowest time over that of the fastest reference known so far
    first_repeats:    repetitions after which a program that is out is not measured on
    margin:           by how much each of them must exceed the ratio at every size for that
    """

    name: str
    references: tuple[str, ...]
    ratios: tuple[float, ...]
    first_repeats: int
    margin: float = 0.05
