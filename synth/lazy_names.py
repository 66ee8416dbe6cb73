"""Packages that re-export names without importing the modules that define them before first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` for `package` that imports each name from the module `homes[name]`.

    `import chorale.synth` stays instant although some of its names need heavy libraries.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return find
