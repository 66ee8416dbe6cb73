"""Examples that come with an installation: in the package of a wheel, at the top of a checkout."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

FOLDER = "examples"


def shipped_example(name: str) -> Path | None:
    """Return the file that `examples/NAME` stands for where there is none in the working directory; None if none."""
    path = Path(name)
    if path.exists() or path.is_absolute() or path.parts[:1] != (FOLDER,) or ".." in path.parts:
        return None
    package = Path(str(resources.files("chorale")))
    for folder in (package, package.parent):
        if (folder / path).is_file():
            return folder / path
    return None
