"""A drawing that notebooks show and `save` writes; it is made when it is first looked at."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from chorale.synth.errors import Unavailable
from chorale.synth.extras import missing_extra


class Picture:
    """What `draw` draws into the file that it is given, as .svg, .png or .pdf."""

    def __init__(self, draw: Callable[[Path], None]) -> None:
        self._draw = draw

    @cached_property
    def svg(self) -> str:
        """The drawing as text of an SVG file. Unavailable without the extra `plot`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "picture.svg"
            self._drawn(path)
            return path.read_text()

    def save(self, path: str | Path) -> Path:
        """Write the drawing to `path`, whose extension is .svg, .png or .pdf; return the path."""
        self._drawn(Path(path))
        return Path(path)

    def _drawn(self, path: Path) -> None:
        try:
            self._draw(path)
        except ModuleNotFoundError as error:
            missing = missing_extra(error)
            raise missing or error from None

    def _repr_svg_(self) -> str | None:
        try:
            return self.svg
        except Unavailable:  # a notebook shows the text then
            return None

    def __repr__(self) -> str:
        return "Picture: .svg is its text, .save(path) writes .svg, .png or .pdf"
