"""Who measures, with which code, and how busy the machine is: what MLflow shows beside a launch."""

from __future__ import annotations

import os
from typing import Any

from chorale.tuner.tracking.mlflow_store import load_mlflow
from chorale.tuner.tracking.mlflow_values import MetricPoint


def origin_tags() -> dict[str, str]:
    """Return MLflow's own tags for the user, the program, and the commit of the current folder if it is in git."""
    load_mlflow()
    from mlflow.tracking.context.registry import resolve_tags  # noqa: PLC0415
    from mlflow.utils.git_utils import get_git_commit  # noqa: PLC0415
    from mlflow.utils.mlflow_tags import MLFLOW_GIT_COMMIT  # noqa: PLC0415

    commit = get_git_commit(os.getcwd())
    return dict(resolve_tags({} if commit is None else {MLFLOW_GIT_COMMIT: commit}))


class MachineLoad:
    """MLflow's monitors of processor, memory, disks and network of this machine.

    They are asked when something is uploaded anyway: a thread with a clock of its own would disturb measurements.
    """

    def __init__(self) -> None:
        load_mlflow()
        from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor  # noqa: PLC0415
        from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor  # noqa: PLC0415
        from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor  # noqa: PLC0415

        kinds: tuple[Any, ...] = (CPUMonitor, DiskMonitor, NetworkMonitor)  # MLflow has no types for them
        self._monitors = [kind() for kind in kinds]

    def points(self, step: int, when_ms: int) -> list[MetricPoint]:
        """Return how the machine was used since the last call."""
        values: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            values |= monitor.aggregate_metrics()
            monitor.clear_metrics()
        return [MetricPoint(f"system/{name}", float(value), step, when_ms) for name, value in values.items()]
