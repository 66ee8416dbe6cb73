"""Files that cannot be read any more are set aside, never removed, before they are written anew from the journal."""

from __future__ import annotations

import os
from pathlib import Path

from chorale.synth.errors import Unavailable


def set_file_aside(path: Path, label: str = "damaged") -> Path:
    """Rename the file or folder at `path` to the first free PATH.LABEL-N; return the new path."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.{label}-{number}")):
        number += 1
    try:
        path.rename(aside)
    except OSError as error:
        way_out = f"move {path} away yourself"
        raise Unavailable("a damaged file must be movable", f"{path}: {error.strerror}", way_out) from error
    return aside
