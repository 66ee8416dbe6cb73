"""Files of a job that others read while it runs: they are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def is_stream(path: Path) -> bool:
    """Whether what stands there is a device or a pipe, or leads to a stream of a process: it must not be replaced."""
    return path.exists() and (not path.is_file() or path.parent == Path("/dev"))


def write_whole(path: Path, content: bytes) -> None:
    """Put `content` at `path` in place of what is there; a device or a pipe, such as /dev/null, is written to.

    OSError if that cannot be done.
    """
    if is_stream(path):
        path.write_bytes(content)
        return
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(content)
    draft.replace(path)
