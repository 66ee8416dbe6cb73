"""One live measurement at a time on a machine, whoever asks for it."""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from synth.errors import Unavailable

POLL_S = 0.05


def machine_lock() -> Path:
    """Return the file that is locked while something is measured on this machine."""
    return Path(tempfile.gettempdir()) / "chorale-measuring.lock"


@contextmanager
def exclusive(path: Path, patience_s: float) -> Iterator[None]:
    """Hold the lock `path` during the block; it is free again when this process dies, however that happens.

    Raises Unavailable if somebody else holds it for `patience_s`.
    """
    descriptor = _open(path)
    try:
        deadline_s = time.monotonic() + patience_s
        while not _taken(descriptor):
            if time.monotonic() > deadline_s:
                way_out = "wait for the other campaign on this machine, or measure on another"
                raise Unavailable("a measurement needs the machine for itself", f"{path} is locked", way_out)
            time.sleep(POLL_S)
        yield
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
    except PermissionError:  # of another user, in a folder where only owners may open for creation
        return os.open(path, os.O_RDONLY)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
