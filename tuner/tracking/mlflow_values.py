"""What goes to MLflow and comes from it: metrics, runs, versions of models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class MetricPoint:
    """A value of a metric; `step` is what MLflow draws it over, such as the size in bytes; `when_ms` 0: as the rest."""

    name: str
    value: float
    step: int = 0
    when_ms: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as the store knows it; `finished` once it has an end."""

    run_id: str
    finished: bool


@dataclass(frozen=True, slots=True)
class ModelVersion:
    """A version of a registered model."""

    name: str
    version: str
    run_id: str
    tags: Mapping[str, str]


_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
"""Codes with which MLflow says that there is no such model, and no such alias of it."""


Answer = TypeVar("Answer")


def if_there(ask: Callable[[], Answer]) -> Answer | None:
    """Return what `ask` returns, None where MLflow has no such thing: asking for one is faster than searching."""
    try:
        return ask()
    except Exception as error:
        if getattr(error, "error_code", None) in _MISSING:
            return None
        raise
