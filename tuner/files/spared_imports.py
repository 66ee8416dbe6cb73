"""Libraries that other libraries import where they are installed, and that no command needs of them.

MLflow imports pandas for data sets that nobody logs here, Optuna scikit-learn for another measure of importance: half a
second each. Both do without where these cannot be imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_enabled = False


def spare_imports() -> None:
    """Let `spared` have an effect from here on: for processes that run commands and nobody else's code."""
    global _enabled  # noqa: PLW0603 - a fact about this process
    _enabled = True


@contextmanager
def spared(library: str) -> Iterator[None]:
    """Let `library` be missing for what is imported in this block, unless it was imported before."""
    if not _enabled or library in sys.modules:
        yield
        return
    sys.modules[library] = None  # type: ignore[assignment]  # it cannot be imported then
    try:
        yield
    finally:
        del sys.modules[library]
