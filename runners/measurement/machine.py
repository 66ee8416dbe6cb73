"""This machine: facts that measurements depend on (never its name), locks between processes, and a cache of probes."""

import fcntl
import json
import logging
import os
import platform
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from chorale.synth.errors import Unavailable
from chorale.synth.identity import content_id
from chorale.synth.processors import core_count

PRIVATE_FOLDER = 0o700
PRIVATE_FILE = 0o600
SYSTEM_RUNTIME = Path("/run/user")
_OTHERS = 0o077


def runtime_folder() -> Path:
    """Return this user's folder for locks and sockets; create it if necessary. Unavailable if that is impossible.

    The candidates are $XDG_RUNTIME_DIR/chorale, /run/user/UID/chorale, a folder in the temporary folder and one in the
    home folder. The first one that belongs to this user is taken; files and links of other users are skipped.
    """
    user = os.geteuid()
    temporary = Path(tempfile.gettempdir())
    parents = [os.environ.get("XDG_RUNTIME_DIR"), str(SYSTEM_RUNTIME / str(user))]
    folders = [Path(parent) / "chorale" for parent in parents if parent and Path(parent).is_dir()]
    return _first_private([*folders, temporary / f"chorale-{user}", Path(os.path.expanduser("~")) / ".chorale-run"])


def temporary_folder(max_path_bytes: int = 4096) -> Path:
    """Return this user's folder on a disk for short-lived files; create it if necessary.

    Its path has at most `max_path_bytes`, because sockets may be created in it, whose paths are limited to 107 bytes.
    """
    name = f"chorale-{os.geteuid()}"
    parents = dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))  # noqa: S108 - owner and mode are checked
    folders = [Path(parent) / name for parent in parents]
    return _first_private(folder for folder in folders if len(os.fsencode(folder)) <= max_path_bytes)


def make_private(folder: Path) -> bool:
    """Create `folder` with mode 0700, or check that it belongs to this user. Return whether it is safe to use."""
    try:
        folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    except OSError:  # also if the path is not a folder
        return False
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    if stat.S_IMODE(status.st_mode) & _OTHERS:
        folder.chmod(PRIVATE_FOLDER)
    return True


def _first_private(folders: Iterable[Path]) -> Path:
    refused = []
    for folder in folders:
        if make_private(folder):
            return folder
        refused.append(str(folder))
    rule, way_out = "no folder belongs to this user alone: {}", "set XDG_RUNTIME_DIR to a folder of yours"
    raise Unavailable(rule, f"others have {', '.join(refused)}", way_out)


def acquire_lock(path: Path, patience_s: float, refusal: Unavailable) -> FileLock:
    """Return the lock `path`, held until its `release`; it is free again when this process dies, however that happens.

    Raises `refusal` if another process still holds it after `patience_s`. A new file is private to this user.
    """
    # A lock file alone, without flock, would outlive a process that was killed.
    lock = FileLock(path, mode=PRIVATE_FILE, thread_local=False, poll_interval=_POLL_S, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience_s)
    except Timeout:
        raise refusal from None
    except OSError as error:  # a file of another user, or a file system without locks
        rule, way_out = (
            "the lock file cannot be written: {}",
            "remove it, let its owner do so, or choose another folder",
        )
        raise Unavailable(rule, f"{path}: {error.strerror}", way_out) from error
    return lock


Facts = Mapping[str, str | int | float | None]

_SYSTEM = Path("/sys/devices/system")


def machine_facts() -> dict[str, str | int | float | None]:
    """Return facts about this machine that do not change between runs; None for facts that the system does not tell."""
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
    """Return the content id of `facts`. Fractional numbers are converted to text first."""
    return content_id({key: str(value) if isinstance(value, float) else value for key, value in facts.items()})


def load_average() -> float | None:
    """Return the average number of processes that wanted a core during the last minute, None if it is unknown."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def _line(path: Path) -> str | None:
    """Return the first line of a system file, None if it is missing or not readable."""
    try:
        return path.read_text().partition("\n")[0]
    except OSError:
        return None


OTHERS_PATIENCE_S = 30.0
"""How long to wait for measurements of other users. After one vain wait, a file tells later measurements not to wait.
"""

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of the system's, of which only the lock is used
_POLL_S = 0.05


def machine_lock() -> Path:
    """Return the file that this user's measurements lock while they run. Other users cannot access it."""
    return runtime_folder() / "measuring.lock"


def everybodys_lock() -> Path:
    """Return the path that all users' measurements lock: a system folder, which exists and cannot be replaced."""
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path("/")


@contextmanager
def exclusive(path: Path, patience_s: float, others_patience_s: float = OTHERS_PATIENCE_S) -> Iterator[None]:
    """Hold this user's lock `path` and the lock of all users of this machine during the block.

    Raises Unavailable if another process of this user still holds `path` after `patience_s`. Other users cannot be
    trusted to release their lock: after `others_patience_s` the block starts anyway, with a warning, and processes of
    this user stop waiting for them until the lock has been free once.
    """
    way_out = "wait for the other campaign on this machine, or measure on another"
    refusal = Unavailable("another measurement is running on this machine: {}", f"{path} is locked", way_out)
    in_vain = path.with_suffix(".in-vain")  # exists from a vain wait until the lock is free again
    with acquire_lock(path, patience_s, refusal):
        descriptor = os.open(everybodys_lock(), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if _acquired(descriptor, 0 if in_vain.exists() else others_patience_s):
                in_vain.unlink(missing_ok=True)
            else:
                in_vain.touch(PRIVATE_FILE)
            yield
        finally:
            os.close(descriptor)  # releases the lock, as the end of this process does


def _acquired(descriptor: int, patience_s: float) -> bool:
    """Acquire the lock of all users; return False, after a warning, if that takes longer than `patience_s`."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                _measuring.warning(
                    "another user of this machine measures, or keeps others from it: times may be longer"
                )
                return False
            time.sleep(_POLL_S)
        except OSError as error:  # the file system has no locks, so nobody holds one
            _measuring.debug("no lock of all users: %s", error.strerror)
            return True


_measuring = logging.getLogger("chorale.measuring")
_log = logging.getLogger("chorale.probe")


def read_probe_cache(path: Path) -> dict[str, dict[str, Any]]:
    """Return the cached results in `path`; empty if they cannot be read."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_probe_cache(path: Path, cache: Mapping[str, Mapping[str, Any]]) -> None:
    """Store `cache` in `path`. If that fails, the next probe measures again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
            json.dump(cache, stream, indent=2)
        os.replace(stream.name, path)
    except OSError as error:
        _log.warning("the probed rates could not be kept in %s: %s", path, error.strerror)
