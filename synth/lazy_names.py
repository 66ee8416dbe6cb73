"""Packages that re-export names without importing the modules that define them before first use."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from chorale.synth.extras import missing_extra


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` for `package` that imports each name from the module `homes[name]`.

    `import chorale.synth` stays instant although some of its names need heavy libraries. A name of which a library is
    missing that an extra brings raises Unavailable, which says what to install.
    """

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error

    return find
