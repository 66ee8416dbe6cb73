"""The formats of pictures, known before anything slow is loaded or computed."""

from __future__ import annotations

from pathlib import Path

from chorale.synth.errors import InvalidInput

FORMATS = (".png", ".svg", ".pdf")


def require_plot_format(path: Path | None) -> None:
    """Raise InvalidInput unless the extension of `path` is one that can be drawn; without a path nothing will be."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise InvalidInput("a plot must be a .png, .svg or .pdf file", path.name, "choose one of these extensions")
