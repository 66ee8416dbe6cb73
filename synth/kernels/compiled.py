"""The only file that imports numba: how kernels are compiled and cached on disk."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_registry: list[Any] = []

_IMPORT = re.compile(r"^(?:from|import) (chorale\.synth(?:\.\w+)+)", re.MULTILINE)
_PACKAGE = Path(__file__).parents[1]


@lru_cache
def _kernel_modules(name: str) -> frozenset[str]:
    """Return the modules of `synth` that decide the machine code of module `name`: itself and its imports, followed
    through modules with kernels; other modules contribute types and constants only."""
    modules: set[str] = set()
    waiting = [name]
    while waiting:
        module = waiting.pop()
        text = _source(module).decode()
        if module not in modules and "chorale.synth.kernels.compiled" in text:
            waiting += _IMPORT.findall(text)
        modules.add(module)
    return frozenset(modules)


@lru_cache
def _source(module: str) -> bytes:
    file = _PACKAGE.parents[1].joinpath(*module.split(".")).with_suffix(".py")
    return file.read_bytes() if file.is_file() else b""


@lru_cache
def _cache_folder(module: str) -> Path:
    """Return a folder that belongs to the kernels of `module` in exactly this state.

    numba's own cache watches the file of a kernel only: after a change to a helper in another file it would run
    machine code that was compiled with the old helper.
    """
    configured = os.environ.get("NUMBA_CACHE_DIR")
    default = _PACKAGE / "__pycache__" if os.access(_PACKAGE, os.W_OK) else Path.home() / ".cache" / "chorale"
    sources = b"\x00".join(_source(name) for name in sorted(_kernel_modules(module)))
    key = hashlib.sha256(sources).hexdigest()[:16]
    return (Path(configured) if configured else default) / f"kernels-{key}"


def compiled(function: Function) -> Function:
    """Compile `function` to machine code at its first call and keep the code on disk for later processes.

    The interpreter lock is released inside. Array arguments must be writable and of the documented types:
    every new combination of types is one more compilation.
    """
    # numba reads this setting when the kernel is made, not when it is first called
    numba.config.CACHE_DIR = str(_cache_folder(function.__module__))  # type: ignore[attr-defined]
    dispatcher = numba.njit(function, cache=True, nogil=True, error_model="numpy")
    _registry.append(dispatcher)
    return cast(Function, dispatcher)


def inlined(function: Function) -> Function:
    """Like `compiled`, for small helpers that are called from other kernels only."""
    numba.config.CACHE_DIR = str(_cache_folder(function.__module__))  # type: ignore[attr-defined]
    return cast(Function, numba.njit(function, cache=True, nogil=True, error_model="numpy"))


def compilations() -> int:
    """Return how many kernels had to be compiled in this process because the disk held no copy."""
    return sum(sum(dispatcher.stats.cache_misses.values()) for dispatcher in _registry)
