"""Draw the pictures of the pages with our own commands: `make pictures`."""

from __future__ import annotations

import os
import shlex
import tempfile
from pathlib import Path

from chorale.tuner.cli.main import main

IMAGES = Path(__file__).parents[1] / "images"

PICTURES = {
    "torus": ["topology show torus:4x4 --plot PICTURE"],
    "bfb": ["synth bfb torus:4x4 -o it.json", "show it.json --plot PICTURE"],
    "forest": ["synth forest a100:2 --k 1 -o it.json", "show it.json --plot PICTURE"],
    "swing": ["synth swing torus:4x4 --collective allreduce -o it.json", "show it.json --plot PICTURE"],
    "ring": ["synth ring torus:4x4 -o it.json", "show it.json --plot PICTURE"],
    "bucket": ["synth bucket torus:4x4 -o it.json", "show it.json --plot PICTURE"],
    "double-binary-tree": [
        "synth double-binary-tree dbt:8 --collective allreduce -o it.json",
        "show it.json --plot PICTURE",
    ],
    "all-to-all": ["synth alltoall torus:4x4 --collective alltoall -o it.json", "show it.json --plot PICTURE"],
    "line": ["topology show 'line(complete:4)' --plot PICTURE"],
    "frontier": ["find --nodes 32 --degree 4 --search 0 --plot PICTURE"],
    "program": [
        "synth bfb torus:4x4 --collective allreduce -o it.json",
        "lower it.json --target msccl-xml -o it.xml",
        "show it.xml --plot PICTURE",
    ],
    "goodput": ["simulate swing torus:8x8 --sizes 1KiB:1GiB:x4 --link-gbps 400 --plot PICTURE"],
}
"""Name of a picture -> the commands that draw it, in a folder of their own."""


def draw(name: str, extension: str, folder: Path) -> None:
    """Run the commands of the picture `name`, which write `folder`/`name`.`extension`."""
    picture = (folder / f"{name}.{extension}").absolute()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            for command in PICTURES[name]:
                words = [str(picture) if word == "PICTURE" else word for word in shlex.split(command)]
                _run(["--quiet", *words])
        finally:
            os.chdir(before)


def _run(arguments: list[str]) -> None:
    """Run a command; its failure ends the script with the command's own message."""
    try:
        main(arguments)
    except SystemExit as stop:
        if stop.code:
            raise


if __name__ == "__main__":
    for known in PICTURES:
        draw(known, "svg", IMAGES)
