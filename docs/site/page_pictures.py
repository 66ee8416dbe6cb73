"""Take the pictures of the service's page: `make pictures` runs its browser tests, which keep screenshots.

Pictures have few colours to keep them small. They show the page as the tests see it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

IMAGES = Path(__file__).parents[1] / "images"
VIEWS = ("design", "bound", "campaign")
"""The screenshots that pages show."""
WIDTH, COLOURS = 900, 96


def take(folder: Path) -> None:
    """Run the browser tests, which write `folder`/VIEW.png. Raises CalledProcessError if a test fails."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "tests/browser/test_page.py"]
    subprocess.run(command, check=True, env={**os.environ, "CHORALE_SCREENSHOTS": str(folder)})  # noqa: S603 - our own


def shrink(source: Path, target: Path) -> None:
    """Write the picture at `source` with `WIDTH` pixels and `COLOURS` colours."""
    with Image.open(source) as image:
        height = round(image.height * WIDTH / image.width)
        small = image.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        small.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        take(Path(scratch))
        for view in VIEWS:
            shrink(Path(scratch) / f"{view}.png", IMAGES / f"page-{view}.png")
