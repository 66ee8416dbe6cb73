"""The Workshop port: prepares candidates and measures programs somewhere, and says what has finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runners.api import Outcome, RunRequest
from runners.preparation import Prepared, Recipe, Refusal


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """The answer to the order `key`: of a preparation, or of a measurement.

    seconds, cpu_s: how long the worker was busy, and the CPU time of its process meanwhile
    """

    key: str
    answer: Prepared | Refusal | Outcome
    seconds: float = 0.0
    cpu_s: float = 0.0


class Workshop(Protocol):
    """Takes orders and hands back answers, in whatever order they finish.

    Every order gets exactly one answer, whatever happens to workers: failures are values (Refusal,
    RunFailure). Measurements start in the order in which they came, as many at a time as the workshop has
    runners; preparations run beside them. A key may be used once for a preparation and once for a measurement.
    Not thread-safe.
    """

    def prepare(self, key: str, recipe: Recipe) -> None:
        """Order a verified program."""
        ...

    def measure(self, key: str, request: RunRequest) -> None:
        """Order a measurement on a runner of this workshop."""
        ...

    def wait(self, timeout_s: float) -> list[Finished]:
        """Return what has finished, waiting at most about `timeout_s` for the first; [] if nothing has."""
        ...

    def close(self) -> None:
        """Drop all orders and let go of workers. Safe to call twice."""
        ...
