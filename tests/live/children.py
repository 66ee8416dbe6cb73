"""The processes that a test started: not those of fixtures that others started before it."""

import psutil

_before: set[psutil.Process] = set()


def begin() -> None:
    """Note what is there before a test."""
    global _before  # noqa: PLW0603  # one test at a time
    _before = set(psutil.Process().children(recursive=True))


def descendants() -> list[psutil.Process]:
    """Return the living descendants of this process that were not there before the test.

    Not the workers of a Ray cluster that other tests started: those come and go by themselves.
    """
    children = psutil.Process().children(recursive=True)
    nodes = [child for child in children if child in _before and _name(child) == "raylet"]
    workers = {worker for node in nodes for worker in node.children(recursive=True)}
    return [child for child in children if child not in _before and child not in workers]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""
