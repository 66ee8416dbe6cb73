"""What probes of this machine found, kept in a file of the home folder: kind of machine -> network -> finding."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
