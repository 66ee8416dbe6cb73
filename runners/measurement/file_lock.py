"""Locks of files, which processes hold for as long as they live."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock, Timeout

from chorale.runners.measurement.private_folder import PRIVATE_FILE
from chorale.synth.errors import Unavailable

_POLL_S = 0.05


def acquire_lock(path: Path, patience_s: float, refusal: Unavailable) -> FileLock:
    """Return the lock `path`, held until its `release`; it is free again when this process dies, however that happens.

    Raises `refusal` if somebody else holds it for `patience_s`. A new file is of this user alone.
    """
    # A lock file alone, without flock, would outlive a process that was killed.
    lock = FileLock(path, mode=PRIVATE_FILE, thread_local=False, poll_interval=_POLL_S, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience_s)
    except Timeout:
        raise refusal from None
    except OSError as error:  # of another user, or on a file system without locks
        rule, way_out = "a lock file must be writable", "remove it, let its owner do so, or choose another folder"
        raise Unavailable(rule, f"{path}: {error.strerror}", way_out) from error
    return lock
