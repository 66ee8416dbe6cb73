"""What no answer says: absolute paths of the server, and who logs in where with which password."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]*)://[^\s'\"<>]+", re.IGNORECASE)
_PATH = re.compile(
    r"(?<![\w./])/(?!v1/)(?:[\w.@+~-]+/)+[\w.@+~-]*|(?<![\w./])/(?:etc|home|root|tmp|var|usr|opt|srv|mnt)\b"
)


def redacted(text: str) -> str:
    """Return `text` with addresses and absolute paths left out."""
    return _PATH.sub("(path)", _ADDRESS.sub(r"\1://(address)", text))
