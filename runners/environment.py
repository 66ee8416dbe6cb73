"""Facts about the machine that a measurement depends on; nothing that names the host."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from synth.identity import content_id

Facts = Mapping[str, str | int | float | None]


def machine_facts() -> dict[str, str | int | float | None]:
    """Return what stays the same on this machine from run to run."""
    return {
        "cpu_model": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def environment_id(facts: Facts) -> str:
    """Return the content id of `facts`; numbers that are not whole are taken as text."""
    return content_id({key: str(value) if isinstance(value, float) else value for key, value in facts.items()})


def load_average() -> float | None:
    """Return how many processes wanted a core during the last minute, None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
