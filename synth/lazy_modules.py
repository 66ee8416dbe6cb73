"""Libraries that take a tenth of a second to import and more, imported at the first use of one of their names.

What is small is computed without them, so that a command on a small network does not wait for what it does not need.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["csgraph", "isomorphism", "networkx", "optimize", "sparse"]

__all__ = ["csgraph", "isomorphism", "networkx", "optimize", "sparse"]

__all__ = ["csgraph", "isomorphism", "networkx", "optimize", "sparse"]


class LazyModule:
    """Stands for the module `name` until one of its attributes is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import networkx
    from networkx.algorithms import isomorphism
    from scipy import optimize, sparse
    from scipy.sparse import csgraph
else:
    networkx = LazyModule("networkx")
    isomorphism = LazyModule("networkx.algorithms.isomorphism")
    optimize = LazyModule("scipy.optimize")
    sparse = LazyModule("scipy.sparse")
    csgraph = LazyModule("scipy.sparse.csgraph")
