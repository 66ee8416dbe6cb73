"""When a measurement is good enough, and when it ends anyway."""

from __future__ import annotations

import re
from dataclasses import dataclass

from chorale.synth.errors import InvalidInput

CONFIDENCE = 0.95
MAX_REPEATS = 100
MAX_SECONDS = 60.0

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?"


@dataclass(frozen=True, slots=True)
class Goal:
    """precision:   the half-width that the interval of a ratio may have, relative to the ratio: 0.02 is +-2 %
    reference:   name of the result that the others are compared with; None: their own medians must be precise
    max_repeats: measured repetitions of each program and size at most
    max_seconds: no request is begun that would probably end later than this after the first one began
    """

    precision: float
    reference: str | None = None
    max_repeats: int = MAX_REPEATS
    max_seconds: float = MAX_SECONDS
    confidence: float = CONFIDENCE


def parse_precision(text: str) -> float:
    """Return the share that `2%` or `0.02` means."""
    match = re.fullmatch(rf"({_NUMBER})\s*(%?)", text.strip())
    share = float(match[1]) / (100 if match[2] else 1) if match else 0.0
    if not 0.0001 <= share <= 1:
        raise InvalidInput("a precision must be between 0.01% and 100%", text, "write it as 2% or 0.02")
    return share


def parse_budget(text: str) -> tuple[int, float]:
    """Return repetitions and seconds of `200`, `90s` or `200,90s`; what is not named has its default."""
    repeats, seconds = MAX_REPEATS, MAX_SECONDS
    for part in text.split(","):
        match = re.fullmatch(rf"({_NUMBER})\s*(s?)", part.strip())
        if match is None or float(match[1]) <= 0 or (not match[2] and "." in match[1]):
            raise InvalidInput("a budget must be repetitions, seconds or both", text, "write it as 200, 90s or 200,90s")
        if match[2]:
            seconds = float(match[1])
        else:
            repeats = int(match[1])
    return repeats, seconds
