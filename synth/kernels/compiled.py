"""Marks the functions that are translated to C++ when the package is built; their text in Python says what they do.

Where the library with their machine code is missing, as on a machine without a compiler, the same text runs in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import update_wrapper
from typing import Any, TypeVar, cast

import numpy as np

from chorale.synth.kernels.library import native_kernel

Function = TypeVar("Function", bound=Callable[..., Any])

KERNELS: list[Kernel] = []
"""All kernels of the modules that were imported so far."""


_blocks_in_python: list[None] = []
"""One element for each `in_python` that is not left: threads enter and leave in any order."""


class Kernel:
    """A function with machine code; `py_func` is its text."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._native: Callable[[tuple[Any, ...]], Any] | None = None
        self._is_loaded = False
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        native = self._native if self._is_loaded else self._load()
        if native is None or _blocks_in_python:
            with np.errstate(all="ignore"):  # as machine code has it: numbers wrap, and division by zero is no error
                return _plain(self.py_func(*arguments))
        return native(arguments)

    @property
    def is_native(self) -> bool:
        """Whether a call would run as machine code."""
        return not _blocks_in_python and (self._native if self._is_loaded else self._load()) is not None

    def __reduce__(self) -> str:
        return self.py_func.__qualname__

    def _load(self) -> Callable[[tuple[Any, ...]], Any] | None:
        self._native = native_kernel(self.py_func)
        self._is_loaded = True
        return self._native


def _plain(result: Any) -> Any:
    """Return numbers as machine code returns them: as Python's own."""
    if isinstance(result, tuple):
        values = map(_plain, result)
        return result._make(values) if hasattr(result, "_make") else tuple(values)
    return result.item() if isinstance(result, np.generic) else result


@contextmanager
def in_python() -> Iterator[None]:
    """Run all kernels as Python, in every thread of the process."""
    _blocks_in_python.append(None)
    try:
        yield
    finally:
        _blocks_in_python.pop()


def compiled(function: Function) -> Function:
    """Run `function` as machine code where there is a library: a kernel.

    The interpreter lock is released inside. Arrays are of exactly the annotated types, their last axis without gaps;
    an array has one axis unless its annotation says otherwise (`Matrix`). Its text keeps to what
    `chorale.synth.kernels.translation` knows: numbers, arrays, NamedTuples of both, loops, other kernels and helpers.
    """
    kernel = Kernel(function)
    KERNELS.append(kernel)
    return cast(Function, kernel)


def inlined(function: Function) -> Function:
    """Mark a helper that kernels call; Python calls it as it is."""
    function.is_kernel_helper = True  # type: ignore[attr-defined]
    return function


def python_text(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function as Python knows it."""
    return function.py_func if isinstance(function, Kernel) else function
