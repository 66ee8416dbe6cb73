"""Runners execute programs on a machine or a cluster, or simulate them, and measure how long they take.

The names below are stable; see docs/guide/python.md.
"""

from typing import TYPE_CHECKING

from chorale.synth.lazy_modules import lazy_names

if TYPE_CHECKING:
    from chorale.runners.api.base import (
        FailureKind as FailureKind,
        Measurement as Measurement,
        Outcome as Outcome,
        ProgramSettings as ProgramSettings,
        RunFailure as RunFailure,
        Runner as Runner,
        RunRequest as RunRequest,
        SizeMeasurement as SizeMeasurement,
    )
    from chorale.runners.api.config import RunnerConfig as RunnerConfig
    from chorale.runners.api.registry import (
        RUNNERS as RUNNERS,
        create_runner as create_runner,
        runner_config as runner_config,
    )
    from chorale.runners.api.units import parse_size as parse_size, parse_sizes as parse_sizes
    from chorale.runners.ray.executor import RayExecutor as RayExecutor

_HOMES = {
    "chorale.runners.api.base": (
        "FailureKind Measurement Outcome ProgramSettings RunFailure RunRequest Runner SizeMeasurement"
    ),
    "chorale.runners.api.config": "RunnerConfig",
    "chorale.runners.api.registry": "RUNNERS create_runner runner_config",
    "chorale.runners.api.units": "parse_size parse_sizes",
    "chorale.runners.ray.executor": "RayExecutor",
}

__all__ = [name for names in _HOMES.values() for name in names.split()]  # imported on first use
__getattr__ = lazy_names(__name__, _HOMES)
