"""Every call of a kernel twice: as machine code and as Python on copies of the arguments, with the same result wanted.

As a plugin (`pytest -p tests.conformance.kernel_comparison`) for all calls of a test run; `comparing` for those of a
block.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from chorale.synth.kernels.compiled import Kernel, in_python

MOST_ELEMENTS = 20_000
"""Calls with more elements in their arguments are not compared: their text would take too long."""

_run = Kernel.__call__
_names: set[str] = set()


class KernelDifferenceError(AssertionError):
    """Machine code and text of a kernel do something different."""


def same(first: Any, second: Any) -> bool:
    """Whether two results are equal to the byte, in the same types."""
    if isinstance(first, tuple):
        return isinstance(second, tuple) and len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        same_kind = first.dtype == second.dtype and first.shape == second.shape
        return same_kind and np.ascontiguousarray(first).tobytes() == np.ascontiguousarray(second).tobytes()
    return type(first) is type(second) and (first == second or (first != first and second != second))


def _elements(arguments: tuple[Any, ...]) -> int:
    """Return how many numbers `arguments` have in all."""
    return sum(_elements(one) if isinstance(one, tuple) else getattr(one, "size", 1) for one in arguments)


def _outcome(call: Callable[[], Any]) -> tuple[str, Any]:
    try:
        return "result", call()
    except Exception as error:
        return type(error).__name__, str(error)


def _compared(kernel: Kernel, *arguments: Any) -> Any:
    if _elements(arguments) > MOST_ELEMENTS:
        return _run(kernel, *arguments)
    _names.add(kernel.__qualname__)
    if kernel._native is None and kernel._load() is None:
        raise KernelDifferenceError("there is no machine code to compare with")
    copies = copy.deepcopy(arguments)
    with in_python():
        wanted = _outcome(lambda: _run(kernel, *copies))
    before = _outcome(lambda: kernel._native(arguments))
    if not same(before, wanted):
        raise KernelDifferenceError(f"{kernel.__qualname__} returns {before}, its text {wanted}")
    if not all(map(same, arguments, copies)):
        raise KernelDifferenceError(f"{kernel.__qualname__} leaves other arguments than its text")
    return _run(kernel, *copy.deepcopy(arguments)) if before[0] != "result" else before[1]


@contextmanager
def comparing() -> Iterator[set[str]]:
    """Compare all calls of kernels in this process; yield the names of those that were called."""
    Kernel.__call__ = _compared  # type: ignore[method-assign, assignment]
    _names.clear()
    try:
        yield _names
    finally:
        Kernel.__call__ = _run  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _comparing() -> Iterator[None]:
    with comparing():
        yield
