"""How any row of any experiment ended, in the four words of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from chorale.experiments.experiment import Row

RowOutcome = Literal["match", "better", "not reached", "no claim"]
"""Of a row: "no claim" has nothing published beside it. A printed number that is proved impossible counts as not
reached, with the proof as the reason."""

ROW_OUTCOMES: tuple[RowOutcome, ...] = ("match", "better", "not reached", "no claim")
_NOT_REACHED = ("worse", "impossible", "not reproduced", "not reached")
_MATCH = ("match", "reproduced", "with overhead")


def row_outcome(row: Row) -> RowOutcome:
    """Return how `row` ended: by its worst quantity if it compares several, "not reached" if it does not hold."""
    verdict = row.get("verdict")
    found = set(verdict.values()) if isinstance(verdict, Mapping) else {verdict}
    if not row["holds"] or found.intersection(_NOT_REACHED):
        return "not reached"
    if "better" in found:
        return "better"
    return "match" if found.intersection(_MATCH) else "no claim"


def count_outcomes(rows: Sequence[Row]) -> dict[RowOutcome, int]:
    """Return how many rows ended in each way, in the order of `ENDINGS`."""
    endings = [row_outcome(row) for row in rows]
    return {ending: endings.count(ending) for ending in ROW_OUTCOMES}
