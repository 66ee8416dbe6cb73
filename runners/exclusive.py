"""Locks between processes: one live measurement at a time on a machine, one writer in a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from chorale.synth.errors import Unavailable

POLL_S = 0.05
_FOR_ALL_USERS = 0o666
_FOR_THIS_USER = 0o644


def machine_lock() -> Path:
    """Return the file that is locked while something is measured on this machine."""
    return Path(tempfile.gettempdir()) / "chorale-measuring.lock"


def acquire_lock(path: Path, patience_s: float, refusal: Unavailable, mode: int = _FOR_THIS_USER) -> FileLock:
    """Return the lock `path`, held until its `release`; it is free again when this process dies, however that happens.

    Raises `refusal` if somebody else holds it for `patience_s`. `mode` is that of a new file.
    """
    # A lock file alone, without flock, would outlive a process that was killed.
    lock = FileLock(path, mode=mode, thread_local=False, poll_interval=POLL_S, fallback_to_soft=False)
    try:
        lock.acquire(timeout=patience_s)
    except Timeout:
        raise refusal from None
    except OSError as error:  # of another user, or on a file system without locks
        rule, way_out = "a lock file must be writable", "remove it, let its owner do so, or choose another folder"
        raise Unavailable(rule, f"{path}: {error.strerror}", way_out) from error
    return lock


@contextmanager
def exclusive(path: Path, patience_s: float) -> Iterator[None]:
    """Hold the lock `path`, which processes of all users may share, during the block.

    Raises Unavailable if somebody else holds it for `patience_s`.
    """
    way_out = "wait for the other campaign on this machine, or measure on another"
    refusal = Unavailable("a measurement needs the machine for itself", f"{path} is locked", way_out)
    with acquire_lock(path, patience_s, refusal, _FOR_ALL_USERS):
        yield
