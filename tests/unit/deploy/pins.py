"""Versions from constraints.txt."""

from pathlib import Path


def pinned(package: str) -> str:
    """Return the version of `package` that images get."""
    lines = (Path(__file__).parents[3] / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines)[package]
