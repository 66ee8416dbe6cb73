"""The audit log: what tokens have changed, and beside it, apart and counted, what was refused."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from chorale.tuner.service.throttle import FailureThrottle, network_of_client

MAX_BYTES, MAX_FILES, MAX_REFUSED_FILES = 16 * 2**20, 8, 2
LINES_A_MINUTE = 10
"""Lines about refusals of one client; more are counted, and the count is in its next line."""
MAX_COUNTED_CLIENTS = 4096


class AuditLog:
    """Lines of JSON: `folder`/audit.jsonl has what changed something, refused.jsonl what was not allowed.

    They rotate apart from each other, up to `MAX_FILES` and `MAX_REFUSED_FILES` older files of `MAX_BYTES`: nobody
    without a token can make lines of the first go. Thread-safe.
    """

    def __init__(self, folder: Path, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self._changes = _handler(folder / "audit.jsonl", MAX_FILES)
        self._refusals = _handler(folder / "refused.jsonl", MAX_REFUSED_FILES)
        self._throttle = FailureThrottle(unix_s, LINES_A_MINUTE, MAX_COUNTED_CLIENTS)
        self._left_out: dict[str, int] = {}  # lines about refusals by client, since the last one
        self._lock = threading.Lock()

    def note(self, client: str, refused: bool, **facts: Any) -> None:
        """Write one line; a full disk is reported by logging and stops nothing."""
        line = {"unix_s": round(self._unix_s(), 3), "client": client, **facts}
        if not refused:
            _write(self._changes, line)
            return
        name = network_of_client(client)
        with self._lock:
            if not self._throttle.admits(client):
                if name in self._left_out or len(self._left_out) < MAX_COUNTED_CLIENTS:
                    self._left_out[name] = self._left_out.get(name, 0) + 1
                return
            left_out = self._left_out.pop(name, 0)
        _write(self._refusals, line | ({"left_out_before": left_out} if left_out else {}))

    def close(self) -> None:
        """Close both files."""
        self._changes.close()
        self._refusals.close()


class _PrivateFile(RotatingFileHandler):
    """A file that its owner alone can read."""

    def _open(self) -> Any:
        stream = super()._open()
        os.fchmod(stream.fileno(), 0o600)
        return stream


def _handler(path: Path, files: int) -> RotatingFileHandler:
    handler = _PrivateFile(path, maxBytes=MAX_BYTES, backupCount=files)
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler


def _write(handler: RotatingFileHandler, line: dict[str, Any]) -> None:
    handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, json.dumps(line), None, None))
