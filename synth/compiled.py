"""The one door to numba: how kernels are compiled and kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_registry: list[Any] = []


def _kernel_sources() -> bytes:
    """Return the text of every file of `synth` that uses this module."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    texts = (file.read_bytes() for file in files)
    return b"\x00".join(text for text in texts if b"synth.compiled" in text)


def _cache_folder() -> Path:
    """Return a folder that belongs to exactly these kernels.

    numba's own cache watches the file of a kernel only: after a change to a helper in another file it would run
    machine code that was compiled with the old helper.
    """
    package = Path(__file__).parent
    given = os.environ.get("NUMBA_CACHE_DIR")
    beside = package / "__pycache__" if os.access(package, os.W_OK) else Path.home() / ".cache" / "chorale"
    key = hashlib.sha256(_kernel_sources()).hexdigest()[:16]
    return (Path(given) if given else beside) / f"kernels-{key}"


numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]  # read from the environment by numba


def compiled(function: Function) -> Function:
    """Compile `function` to machine code at its first call and keep the code on disk for later processes.

    The interpreter lock is released inside. Array arguments must be writable and of the documented types:
    every new combination of types is one more compilation.
    """
    dispatcher = numba.njit(function, cache=True, nogil=True, error_model="numpy")
    _registry.append(dispatcher)
    return cast(Function, dispatcher)


def inlined(function: Function) -> Function:
    """Like `compiled`, for small helpers that are called from other kernels only."""
    return cast(Function, numba.njit(function, cache=True, nogil=True, error_model="numpy"))


def compilations() -> int:
    """Return how many kernels had to be compiled in this process because the disk held no copy."""
    return sum(sum(dispatcher.stats.cache_misses.values()) for dispatcher in _registry)
