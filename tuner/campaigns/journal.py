"""An append-only file of lines that survives a crash in the middle of a write and a full disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Write = Callable[[int, bytes | memoryview], int]
"""Writes bytes to a file descriptor and returns how many were taken, like `os.write`; tests inject faults here."""

TORN_SUFFIX = ".torn"


class Journal:
    """Lines in a file, each on disk (fsync) when `append` returns.

    A line is either there as a whole or not at all: after a failed write the file is cut back to what it was,
    and opening moves the torn end that a crash left behind to a file beside it (`.torn`), never losing it.
    One writer only; the caller holds a lock.
    """

    def __init__(self, path: Path, write: Write = os.write) -> None:
        self.path = path
        self.torn_bytes = set_torn_end_aside(path)
        self._write = write
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)

    def lines(self) -> list[bytes]:
        """Return all whole lines, without their ends."""
        return self.path.read_bytes().splitlines()

    def append(self, line: bytes) -> None:
        """Add one line. Raises OSError, with the file as it was, if it cannot be written in full."""
        if b"\n" in line:
            raise ValueError("a journal line must not contain line breaks")
        before = os.fstat(self._descriptor).st_size
        try:
            rest = memoryview(line + b"\n")
            while rest:
                rest = rest[self._write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except BaseException:
            os.ftruncate(self._descriptor, before)
            raise

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def set_torn_end_aside(path: Path) -> int:
    """Move what follows the last line end of the file at `path` to a `.torn` file; return its bytes (0: none)."""
    if not path.exists():
        return 0
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    torn = content[whole:]
    if torn:
        with open(path.with_name(path.name + TORN_SUFFIX), "ab") as aside:
            aside.write(torn + b"\n")
            aside.flush()
            os.fsync(aside.fileno())
        os.truncate(path, whole)
    return len(torn)
