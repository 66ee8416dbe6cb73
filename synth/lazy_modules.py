"""Imports libraries on first use, so that commands only load what they need, and lists the optional libraries.

Each library below takes at least 0.1 s to import. If a package re-exports names from its modules, `lazy_names` imports
such a module when one of its names is first used. Optional libraries belong to extras, which pip installs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from chorale.synth.errors import Unavailable

__all__ = [
    "EXTRAS", "arrow", "csgraph", "highspy", "lazy_names", "missing_extra", "networkx", "optimize", "parquet",
    "require", "sparse", "special",
]  # fmt: skip

EXTRAS: Mapping[str, tuple[str, ...]] = {
    "plot": ("matplotlib",),
    "tune": ("ray", "optuna", "mlflow", "sqlalchemy", "threadpoolctl", "jinja2"),
    "serve": ("fastapi", "starlette", "uvicorn", "limits", "prometheus_client"),
}
"""Maps the name of each extra to the modules that it installs. The distributions are listed in pyproject.toml."""

_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def missing_extra(error: ModuleNotFoundError) -> Unavailable | None:
    """Return an error that says which extra to install, or None if no extra installs the missing module."""
    name = error.name or ""
    extra = _EXTRA_OF.get(".".join(name.split(".")[:2])) or _EXTRA_OF.get(name.partition(".")[0])
    return None if extra is None else _unavailable(extra, name)


def require(module: str) -> None:
    """Raise Unavailable if `module`, which belongs to an extra, is not installed. The module is not imported."""
    try:
        is_there = find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        raise _unavailable(_EXTRA_OF[module], module)


def _unavailable(extra: str, module: str) -> Unavailable:
    way_out = f"run: pip install 'chorale-collectives[{extra}]'"
    return Unavailable(f"this needs the extra {extra!r}, because there is {{}}", f"no module {module}", way_out)


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
    """Return a module-level `__getattr__` for `package` that imports each name from its module on first use.

    This keeps `import chorale.synth` fast although some names need large libraries. If a name needs a library from an
    extra that is not installed, using the name raises Unavailable, which says which extra to install.

    homes: maps each module to the names that it defines, separated by blanks
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
