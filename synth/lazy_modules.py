"""Imports on first use, so that commands only load the libraries they use.

Each library below takes at least 0.1 s to import. If a package re-exports names from its modules, `lazy_names` imports
such a module when one of its names is first used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from chorale.synth.extras import missing_extra

__all__ = ["arrow", "csgraph", "highspy", "lazy_names", "networkx", "optimize", "parquet", "sparse", "special"]


class LazyModule:
    """A placeholder for the module `name`, which is imported when one of its attributes is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import highspy
    import networkx
    import pyarrow as arrow
    from pyarrow import parquet
    from scipy import optimize, sparse, special
    from scipy.sparse import csgraph
else:
    highspy = LazyModule("highspy")
    networkx = LazyModule("networkx")
    arrow = LazyModule("pyarrow")
    parquet = LazyModule("pyarrow.parquet")
    optimize = LazyModule("scipy.optimize")
    sparse = LazyModule("scipy.sparse")
    special = LazyModule("scipy.special")
    csgraph = LazyModule("scipy.sparse.csgraph")


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module-level `__getattr__` for `package` that imports each of the names `homes[module]` from `module`.

    This keeps `import chorale.synth` fast although some names need large libraries. If a name needs a library from an
    extra that is not installed, using it raises Unavailable with the extra to install.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            raise missing_extra(error) or error from error

    return find
