"""Lets packages re-export names; the defining module is only imported when a name is first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from chorale.synth.extras import missing_extra


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
