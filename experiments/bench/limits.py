"""What commands are meant to keep, and what they took before: a table of numbers that people gave."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Limit:
    """seconds: of two cores to itself; megabytes: of one process, None where nobody asked for any; before: in words."""

    seconds: float
    megabytes: float | None
    before: str


@functools.cache
def _all_limits() -> Mapping[str, Mapping[str, Limit]]:
    text = resources.files("chorale.experiments").joinpath("data/limits.json").read_text(encoding="utf-8")
    return {name: {case: Limit(*row) for case, row in cases.items()} for name, cases in json.loads(text).items()}


def limits_of(benchmark: str) -> Mapping[str, Limit]:
    """Return the limits of the cases of a benchmark, in order; empty where it has none."""
    return _all_limits().get(benchmark, {})
