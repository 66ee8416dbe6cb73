"""Which tests `make test` leaves to `make test-all`: those in more.txt.

A line there is a folder, a file, a test or one case of it, as pytest writes them below `tests/`. What a line with `+`
before it names is run by `make test` all the same: the longest line that fits a test decides. So a new test is in
`make test` until somebody leaves it to the other.
"""

from collections.abc import Collection
from functools import cache
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("more.txt")


@cache
def entries() -> dict[str, bool]:
    """Return each line's test, file or folder, and whether `make test` leaves it out."""
    lines = (line.strip() for line in LIST.read_text(encoding="utf-8").splitlines())
    return {line.lstrip("+ "): not line.startswith("+") for line in lines if line and not line.startswith("#")}


def is_more(name: str) -> bool:
    """Whether `make test` leaves out this test or file, unless a longer line says otherwise of parts of it."""
    while name:
        if (left_out := entries().get(name)) is not None:
            return left_out
        name = _parent(name)
    return False


def require_cases(collected: Collection[str]) -> None:
    """Refuse the list where it keeps cases of a test that has other cases now: `make test` would run none of them."""
    for test in {_parent(name) for name in collected if "[" in name and entries().get(_parent(name))}:
        kept = [name for name in entries() if name.startswith(f"{test}[")]
        if kept and not set(kept) & set(collected):
            raise pytest.UsageError(f"tests/more.txt keeps none of the cases that {test} has: {kept[0]}")


def is_whole(file: str) -> bool:
    """Whether no line is about a part of this file."""
    return not any(name.startswith(f"{file}::") for name in entries())


def _parent(name: str) -> str:
    """Return what a name is part of: a case of a test, a test of a file, a file of a folder."""
    test, bracket, _ = name.partition("[")
    if bracket:
        return test
    outer, separator, _ = name.rpartition("::" if "::" in name else "/")
    return outer if separator else ""
