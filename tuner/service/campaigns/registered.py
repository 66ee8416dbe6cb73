"""What takes a process beside the service: entries of the registry, and importances of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chorale.synth.errors import CheckFailed
from chorale.synth.topology.topology import Topology
from chorale.tuner.files.home import Home
from chorale.tuner.tracking.mlflow_store import MlflowStore
from chorale.tuner.tracking.registry import load_best
from chorale.tuner.trials.records import CompleteTrial
from chorale.tuner.trials.tuning_table import SizeClass


def trial_importances(trials: Sequence[CompleteTrial]) -> dict[str, float]:
    """Return how much each parameter decided; Optuna is imported where this is called, not in the service."""
    from chorale.tuner.search.study import importances  # noqa: PLC0415 - a second to import

    return importances(trials)


def registered(
    home: Home, topology: Topology, collective: str, size_bytes: int, alias: str, kind: str | None
) -> dict[str, Any] | bytes:
    """Return the facts of the registered version, or with the `kind` "schedule" or "program" that file, verified.

    CheckFailed where nothing is registered, nothing that verifies, or no program but the library's own algorithm.
    """
    entry = load_best(MlflowStore(home.mlflow_uri, home.artifacts), topology, collective, size_bytes, alias)
    if kind is not None:
        content = entry.program.schedule if kind == "schedule" else entry.program.program
        if content is None:
            value, way_out = "a program that was adopted from a file", "ask for the program"
            raise CheckFailed("a registered version must have a schedule to give it out", value, way_out)
        return content
    return {
        "model": entry.version.name,
        "version": entry.version.version,
        "size_range_bytes": [entry.size_class.min_bytes, entry.size_class.max_bytes],
        "exact": entry.size_class == SizeClass.of(size_bytes),
        "library": entry.library,
        "measured": dict(entry.measured),
        "manifest": dict(entry.manifest),
    }
