"""Who asked for what: one JSON line for every request that changes something or is refused for its token."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

MOST_BYTES, MOST_FILES = 16 * 2**20, 8


class Audit:
    """Lines of JSON in `folder`/audit.jsonl; older files are kept beside it, up to `MOST_FILES`."""

    def __init__(self, folder: Path, unix_s: Callable[[], float]) -> None:
        self._unix_s = unix_s
        self._handler = RotatingFileHandler(folder / "audit.jsonl", maxBytes=MOST_BYTES, backupCount=MOST_FILES)
        self._handler.setFormatter(logging.Formatter("%(message)s"))

    def note(self, **facts: Any) -> None:
        """Write one line; a full disk is reported by logging and stops nothing."""
        text = json.dumps({"unix_s": round(self._unix_s(), 3), **facts})
        self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))

    def close(self) -> None:
        self._handler.close()
