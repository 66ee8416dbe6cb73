"""This machine: facts that measurements depend on (never its name), locks between processes, and a cache of probes."""

from __future__ import annotations

import json
import logging
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.measurement.file_lock import acquire_lock
from chorale.synth.errors import Unavailable
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


_FOR_ALL_USERS = 0o666


def machine_lock() -> Path:
    """Return the file that is locked while something is measured on this machine."""
    return Path(tempfile.gettempdir()) / "chorale-measuring.lock"


@contextmanager
def exclusive(path: Path, patience_s: float) -> Iterator[None]:
    """Hold the lock `path`, which processes of all users may share, during the block.

    Raises Unavailable if somebody else holds it for `patience_s`.
    """
    way_out = "wait for the other campaign on this machine, or measure on another"
    refusal = Unavailable("a measurement needs the machine for itself", f"{path} is locked", way_out)
    with acquire_lock(path, patience_s, refusal, _FOR_ALL_USERS):
        yield


_log = logging.getLogger("chorale.probe")


def read_probe_cache(path: Path) -> dict[str, dict[str, Any]]:
    """Return what is kept in `path`, nothing if that cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_probe_cache(path: Path, cache: Mapping[str, Mapping[str, Any]]) -> None:
    """Keep `cache` in `path`; where that is not possible the next probe measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
            json.dump(cache, stream, indent=2)
        os.replace(stream.name, path)
    except OSError as error:
        _log.warning("the probed rates could not be kept in %s: %s", path, error.strerror)
