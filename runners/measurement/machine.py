"""Provides facts about this machine that affect measurements, locks between processes, and the probe cache."""

import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from chorale.runners.measurement.private_files import (
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    runtime_folder,
    why_foreign,
    write_private,
)
from chorale.synth.errors import Unavailable
from chorale.synth.identity import content_id
from chorale.synth.processors import core_count

Facts = Mapping[str, str | int | float | None]
_SYSTEM = Path("/sys/devices/system")
_measuring = logging.getLogger("chorale.measuring")
_log = logging.getLogger("chorale.probe")
OTHERS_PATIENCE_S = 30.0
"""Maximum number of seconds to wait until other users' measurements end."""
_IN_VAIN_S = 600.0
"""After waiting in vain for other users, measurements do not wait for them again for this number of seconds."""
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a system folder of which only the lock is used
_POLL_S = 0.05


def acquire_lock(path: Path, patience_s: float, refusal: Unavailable) -> FileLock:
    """Lock the file `path` and return the lock. It is held until its `release` is called or this process ends.

    Raises `refusal` if another process still holds the lock after `patience_s`. A new file is private to this user.
    """
    # A lock file alone, without flock, would outlive a process that was killed.
    lock = FileLock(path, mode=PRIVATE_FILE, thread_local=False, poll_interval=_POLL_S, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience_s)
    except Timeout:
        raise refusal from None
    except OSError as error:  # another user's file, or a file system without locks
        way_out = "remove it, let its owner do so, or choose another folder"
        raise Unavailable("the lock file cannot be written: {}", f"{path}: {error.strerror}", way_out) from error
    return lock


def machine_facts() -> dict[str, str | int | float | None]:
    """Return facts about this machine that do not change between runs; None for facts that are not available."""
    processors = Path("/proc/cpuinfo")
    lines = processors.read_text().splitlines() if processors.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu_model": models[0] if models else platform.processor(),
        "cores": core_count(),
        "kernel": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "clock_source": _line(_SYSTEM / "clocksource/clocksource0/current_clocksource"),
        "governor": _line(_SYSTEM / "cpu/cpu0/cpufreq/scaling_governor"),
    }


def environment_id(facts: Facts) -> str:
    """Return an id that is the same for equal `facts`. Floats are compared as text."""
    return content_id({key: str(value) if isinstance(value, float) else value for key, value in facts.items()})


def load_average() -> float | None:
    """Return the average number of processes that wanted a core in the last minute, or None if this is unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _line(path: Path) -> str | None:
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return None


def machine_lock() -> Path:
    """Return the file that this user's measurements lock while they run. Other users cannot access it."""
    return runtime_folder() / "measuring.lock"


def everybodys_lock() -> Path:
    """Return the path that every user's measurements lock: a system folder, which users cannot remove or replace."""
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path("/")


@contextmanager
def exclusive(path: Path, patience_s: float, others_patience_s: float = OTHERS_PATIENCE_S) -> Iterator[None]:
    """Hold this user's lock `path` and the lock shared by all users of this machine during the block.

    Raises Unavailable if another process of this user still holds `path` after `patience_s`. Other users cannot be
    trusted to release their lock: after `others_patience_s` the block starts anyway, with a warning, and for the next
    ten minutes this user's processes do not wait for other users.
    """
    way_out = "wait for the other campaign on this machine, or measure on another"
    refusal = Unavailable("another measurement is running on this machine: {}", f"{path} is locked", way_out)
    in_vain = path.with_suffix(".in-vain")  # its modification time says when a wait last timed out
    # Only one process at a time waits for `path`. A process that has just released `path` must wait here;
    # otherwise it would lock `path` again before the process that waits for it.
    deadline_s = time.monotonic() + patience_s
    turn = acquire_lock(path.with_suffix(".next"), patience_s, refusal)
    try:
        lock = acquire_lock(path, max(0.0, deadline_s - time.monotonic()), refusal)
    finally:
        turn.release()
    try:
        descriptor = os.open(everybodys_lock(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            age_s = time.time() - in_vain.stat().st_mtime if in_vain.exists() else -1
            deadline_s = time.monotonic() + (0 if 0 <= age_s < _IN_VAIN_S else others_patience_s)
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline_s:
                        others = "another user of this machine measures, or blocks others from measuring"
                        _measuring.warning("%s: times may be longer", others)
                        in_vain.touch(PRIVATE_FILE)
                        break
                    time.sleep(_POLL_S)
                except OSError as error:  # the file system has no locks, so no process holds one
                    _measuring.debug("cannot lock for all users: %s", error.strerror)
                    break
            yield
        finally:
            os.close(descriptor)  # releases the lock; so does the end of this process
    finally:
        lock.release()


def read_probe_cache(path: Path) -> dict[str, dict[str, Any]]:
    """Return the cached results in `path`; empty if they cannot be read or may have been written by other users."""
    try:
        found = json.loads(path.read_text()) if why_foreign(path) is None else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_probe_cache(path: Path, cache: Mapping[str, Mapping[str, Any]]) -> None:
    """Store `cache` in `path`. If that fails, the next probe measures again."""
    try:
        path.parent.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
        write_private(path, json.dumps(cache, indent=2).encode())
    except OSError as error:
        _log.warning("the probed rates could not be stored in %s: %s", path, error.strerror)
