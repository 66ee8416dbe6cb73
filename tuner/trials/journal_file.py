"""The file of a journal: append-only, with one writer, and safe against crashes and full disks."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

from chorale.runners.measurement.machine import PRIVATE_FILE
from chorale.synth.errors import InvalidInput, Unavailable

Write = Callable[[int, bytes | memoryview], int]
"""Writes bytes to a file descriptor and returns how many were taken, like `os.write`; tests inject faults here."""

TORN_SUFFIX = ".torn"
RECOVERY_S = 6.0
"""How long a disk that takes nothing may need to recover before a launch ends."""
MAX_JOURNAL_BYTES = 2**28
_REMEMBERED_BYTES = 64
_POLL_S = 0.05


class JournalLost(Unavailable):
    """Another process writes into the journal of this launch: nothing of this process may be recorded any more."""

    def __init__(self, path: Path, what: str) -> None:
        way_out = "let the other launch end, then see `chorale tune --resume`"
        super().__init__("a launch must have one writer", f"{path} {what}", way_out)


class Journal:
    """Lines in a file, each on disk (fsync) when `append` returns.

    A line is either there as a whole or not at all: after a failed write the file is cut back to what it was,
    and opening moves the torn end that a crash left behind to a file beside it (`.torn`), never losing it.
    One writer only: the file itself is locked for as long as it is open, and as locks do not hold everywhere (other
    copies, file servers), every `append` requires that the file is the one that this object opened and ends as it
    left it. Threads may share it.
    """

    def __init__(self, path: Path, write: Write = os.write, patience_s: float = 0.0) -> None:
        """Open or create the file; another process that has it open is given `patience_s`, then Unavailable."""
        self.path = path
        self._write = write
        self._turn = threading.RLock()  # the thread that tells MLflow must not look at a line that is half written
        self._descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            _lock(self._descriptor, path, patience_s)
            self.torn_bytes = set_torn_end_aside(path)
            self._size_bytes = os.fstat(self._descriptor).st_size
            self._end = self._last_bytes(self._size_bytes)
        except BaseException:
            self.close()
            raise

    def lines(self) -> list[bytes]:
        """Return all whole lines, without their ends."""
        return whole_lines(read_journal(self.path))

    def append(self, line: bytes) -> None:
        """Add one line. Raises OSError, with the file as it was, if it cannot be written in full.

        JournalLost if somebody else wrote into the file, or put another in its place.
        """
        if b"\n" in line:
            raise ValueError("a journal line must not contain line breaks")
        with self._turn:
            self.require_ours()
            self._add(line + b"\n")
            self._require_named()  # else the line went into a file that nobody reads any more

    def close(self) -> None:
        """Close the file, which frees it for others. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _add(self, content: bytes) -> None:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[self._write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except BaseException:
            os.ftruncate(self._descriptor, self._size_bytes)
            raise
        self._size_bytes += len(content)
        self._end = (self._end + content)[-_REMEMBERED_BYTES:]

    def require_ours(self) -> None:
        """Raise JournalLost unless the file is the one that this object opened and ends as it left it."""
        with self._turn:
            opened = self._require_named()
            if opened.st_size != self._size_bytes or self._last_bytes(self._size_bytes) != self._end:
                raise JournalLost(self.path, "has lines of another process")

    def _require_named(self) -> os.stat_result:
        """Return the status of the file that is open; JournalLost if another one has its name."""
        opened = os.fstat(self._descriptor)
        try:
            named = os.stat(self.path)
        except FileNotFoundError:
            raise JournalLost(self.path, "was removed") from None
        if (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino):
            raise JournalLost(self.path, "was replaced by another file")
        return opened

    def _last_bytes(self, size_bytes: int) -> bytes:
        start = max(0, size_bytes - _REMEMBERED_BYTES)
        return os.pread(self._descriptor, size_bytes - start, start)


def read_journal(path: Path) -> bytes:
    """Return what is in the journal at `path`. InvalidInput if it is no regular file, unreadable or too large."""
    descriptor = _open_regular(path, os.O_RDONLY)
    with open(descriptor, "rb") as stream:
        content = stream.read(MAX_JOURNAL_BYTES + 1)
    if len(content) > MAX_JOURNAL_BYTES:
        rule = f"a journal must have at most {MAX_JOURNAL_BYTES // 2**20} MiB"
        raise InvalidInput(rule, path, "move it away, or start a new launch without --resume")
    return content


def whole_lines(content: bytes) -> list[bytes]:
    """Return the lines of a journal without their ends; a torn one at the end is left out."""
    return content.split(b"\n")[:-1]


def _open_regular(path: Path, flags: int) -> int:
    rule, way_out = "a journal must be a file that can be read and written", "restore it, or start a new launch"
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK, PRIVATE_FILE)  # a pipe must not hold us up
    except OSError as error:
        raise InvalidInput(rule, f"{path}: {error.strerror}", way_out) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InvalidInput(rule, f"{path}: no regular file", way_out)
    return descriptor


def _lock(descriptor: int, path: Path, patience_s: float) -> None:
    """Lock the file until it is closed. It is free again when this process dies, however that happens."""
    deadline_s = time.monotonic() + patience_s
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                way_out = "wait for the other process, or start a new launch without --resume"
                value = f"another process works in {path.parent}"
                raise Unavailable("a launch must have one writer", value, way_out) from None
        except OSError as error:
            way_out = "point CHORALE_HOME at a file system that has locks"
            raise Unavailable("a journal must be lockable", f"{path}: {error.strerror}", way_out) from error
        time.sleep(_POLL_S)


def set_torn_end_aside(path: Path) -> int:
    """Move what follows the last line end of the file at `path` to a `.torn` file; return its bytes (0: none)."""
    if not path.exists():
        return 0
    content = read_journal(path)
    whole = content.rfind(b"\n") + 1
    torn = content[whole:]
    if torn:
        with open(path.with_name(path.name + TORN_SUFFIX), "ab") as aside:
            aside.write(torn + b"\n")
            aside.flush()
            os.fsync(aside.fileno())
        os.truncate(path, whole)
    return len(torn)
