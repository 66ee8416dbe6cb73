"""Placeholders for libraries that take at least 0.1 s to import, so that commands only load the libraries they use.

Each library is imported when one of its names is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["arrow", "csgraph", "highspy", "isomorphism", "networkx", "optimize", "parquet", "sparse", "special"]


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
    from networkx.algorithms import isomorphism
    from pyarrow import parquet
    from scipy import optimize, sparse, special
    from scipy.sparse import csgraph
else:
    highspy = LazyModule("highspy")
    networkx = LazyModule("networkx")
    isomorphism = LazyModule("networkx.algorithms.isomorphism")
    arrow = LazyModule("pyarrow")
    parquet = LazyModule("pyarrow.parquet")
    optimize = LazyModule("scipy.optimize")
    sparse = LazyModule("scipy.sparse")
    special = LazyModule("scipy.special")
    csgraph = LazyModule("scipy.sparse.csgraph")
