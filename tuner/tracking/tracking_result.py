"""What MLflow has of a launch at its end, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

NOTICE_S = 10.0
"""Longest silence about what is waited for."""


@dataclass(frozen=True, slots=True)
class TrackingResult:
    """What MLflow has of a launch at its end; `problem` says in one line why it does not have everything.

    `seconds` is how long uploading trials took this process.
    """

    experiment_id: str | None = None
    parent_run_id: str | None = None
    run_ids: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    seconds: float = 0.0


def pauses_of(patience_s: float) -> list[float]:
    """Return waits of at most `NOTICE_S` that add up to `patience_s`."""
    whole, rest = divmod(patience_s, NOTICE_S)
    return [NOTICE_S] * int(whole) + ([rest] if rest else [])
