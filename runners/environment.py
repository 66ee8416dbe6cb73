"""Facts about the machine that a measurement depends on; nothing that names the host."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from chorale.synth.identity import content_id

Facts = Mapping[str, str | int | float | None]

_SYSTEM = Path("/sys/devices/system")


def machine_facts() -> dict[str, str | int | float | None]:
    """Return what stays the same on this machine from run to run; None for what the system does not say."""
    return {
        "cpu_model": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "clock_source": _line(_SYSTEM / "clocksource/clocksource0/current_clocksource"),
        "governor": _line(_SYSTEM / "cpu/cpu0/cpufreq/scaling_governor"),
    }


def environment_id(facts: Facts) -> str:
    """Return the content id of `facts`; numbers that are not whole are taken as text."""
    return content_id({key: str(value) if isinstance(value, float) else value for key, value in facts.items()})


def load_average() -> float | None:
    """Return how many processes wanted a core during the last minute, None where the system does not say."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _line(path: Path) -> str | None:
    """Return the first line of a file of the system, None where it is not there or may not be read."""
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return None


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor()
