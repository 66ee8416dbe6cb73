"""The processes that a test started: not those of fixtures that others started before it."""

from __future__ import annotations

import psutil

_before: set[psutil.Process] = set()


def begin() -> None:
    """Note what is there before a test."""
    global _before  # noqa: PLW0603  # one test at a time
    _before = set(psutil.Process().children(recursive=True))


def descendants() -> list[psutil.Process]:
    """Return the living descendants of this process that were not there before the test."""
    return [process for process in psutil.Process().children(recursive=True) if process not in _before]
