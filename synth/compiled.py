"""The one door to numba: how kernels are compiled and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

Function = TypeVar("Function", bound=Callable[..., Any])

_registry: list[Any] = []


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
