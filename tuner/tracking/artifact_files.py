"""Files on their way to MLflow's store of artifacts."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit


@contextmanager
def as_folder(files: Mapping[str, bytes]) -> Iterator[str]:
    """Put `files` (path -> content) into a folder for as long as the block runs."""
    with tempfile.TemporaryDirectory(prefix="chorale-") as folder:
        write_files(Path(folder), files)
        yield folder


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` (path -> content) below `folder`, which is made where needed."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def folder_at(artifact_uri: str) -> Path | None:
    """Return the folder of this machine that a `file:` address names, None for any other address."""
    parts = urlsplit(artifact_uri)
    return Path(unquote(parts.path)) if parts.scheme == "file" and parts.netloc in ("", "localhost") else None
