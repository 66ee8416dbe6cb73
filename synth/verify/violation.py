"""A broken rule, said so that a person can find it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScheduleViolation:
    """`rule` is a stable key for scripts, `message` a sentence for people."""

    rule: str
    message: str
