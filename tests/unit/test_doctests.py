"""The examples in docstrings do what they show."""

import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import chorale
import chorale.runners
import chorale.synth
import chorale.tuner


def modules_with_examples() -> Iterator[str]:
    """Yield the name of every module whose source holds a `>>>`."""
    for package in (chorale.synth, chorale.runners, chorale.tuner):
        yield from _names_in(package)
    yield from (name for name in _names_in(chorale) if name.count(".") <= 1)


def _names_in(package: ModuleType) -> Iterator[str]:
    root = Path(package.__path__[0])
    for path in sorted(root.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(root).with_suffix("").parts
            yield ".".join([package.__name__, *(part for part in parts if part != "__init__")])


MODULES = list(modules_with_examples())


def test_there_are_examples():
    assert len(MODULES) >= 9


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of(name: str):
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted > 0
    assert results.failed == 0
