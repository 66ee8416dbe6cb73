"""One broken rule in a program, with the place where it was found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProgramViolation:
    """A rule that a program breaks. `rule` is a stable short name, `message` one line that includes the place.

    `block` is the id of a thread block of `rank`, `step` the number of an instruction in it; None where the
    rule is about something wider.
    """

    rule: str
    message: str
    rank: int | None = None
    block: int | None = None
    step: int | None = None

    @staticmethod
    def at(
        rule: str, message: str, rank: int | None = None, block: int | None = None, step: int | None = None
    ) -> ProgramViolation:
        """Return a violation whose message begins with its place."""
        named = (("rank", rank), ("block", block), ("step", step))
        place = ", ".join(f"{name} {value}" for name, value in named if value is not None)
        return ProgramViolation(rule, f"{place}: {message}" if place else message, rank, block, step)
