"""What goes to MLflow and comes from it: metrics, runs, versions of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


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
