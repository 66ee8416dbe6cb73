"""The only file that imports numba: how kernels are compiled and cached on disk, and which calls need no machine code.

To load numba and machine code takes half a second, in which Python itself runs what small networks need. Kernels of
whole numbers give the same results either way; the clock decides only which of them runs.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

Function = TypeVar("Function", bound=Callable[..., Any])

_registry: list[Kernel] = []
_making = threading.RLock()

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
    sources = b"\x00".join(_source(name) for name in sorted(_kernel_modules(module)))
    key = hashlib.sha256(sources).hexdigest()[:16]
    return cache_root() / f"kernels-{key}"


def cache_root() -> Path:
    """Return the folder of all machine code."""
    configured = os.environ.get("NUMBA_CACHE_DIR")
    default = _PACKAGE / "__pycache__" if os.access(_PACKAGE, os.W_OK) else Path.home() / ".cache" / "chorale"
    return Path(configured) if configured else default


class _Allowance:
    """The seconds that kernels may still take in Python before machine code is worth its loading."""

    seconds = 0.3
    is_withheld = False


class _Interpreted(threading.local):
    """Whether a kernel runs in Python, in this thread: those that it calls do so too."""

    is_inside = False


_interpreted = _Interpreted()


LONGEST_S = 0.1
"""No call that may take longer runs in Python."""

UNKNOWN_ELEMENT_S, LINEAR_ELEMENT_S = 10e-6, 1e-6
"""What an element of the arguments is taken to cost before a kernel has run."""

FEW_ELEMENTS = 64
"""Calls with fewer say nothing about how the time grows."""


class Kernel:
    """A function that numba compiles; numba itself is imported only then.

    power: of the number of elements of the arguments with which its work grows; without one it never runs in Python
    """

    def __init__(self, function: Callable[..., Any], power: float | None = None) -> None:
        self.py_func = function
        self._machine_code: Any = None
        self._power = power
        self._least_s = LINEAR_ELEMENT_S if power == 1 else UNKNOWN_ELEMENT_S
        self._last_s, self._last_elements = 0.0, FEW_ELEMENTS
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        if _interpreted.is_inside:
            return self.py_func(*arguments)
        if self._machine_code is None and self._power is not None:
            elements = _elements(arguments)
            if self._expected_s(elements) < min(_Allowance.seconds, LONGEST_S) and not _Allowance.is_withheld:
                return self._in_python(arguments, elements)
        return (self._machine_code or self.machine_code())(*arguments)

    def _expected_s(self, elements: int) -> float:
        """Return what a call takes in Python: from the last one, and never less than what is usual."""
        growth: float = max(elements / self._last_elements, 1.0) ** (self._power or 1.0)
        return max(self._least_s * elements, self._last_s * growth)

    def _in_python(self, arguments: tuple[Any, ...], elements: int) -> Any:
        began_s, _interpreted.is_inside = time.perf_counter(), True
        try:
            with np.errstate(all="ignore"):  # as machine code has it: numbers wrap, and division by zero is no error
                return _plain(self.py_func(*arguments))
        finally:
            _interpreted.is_inside = False
            self._last_s, self._last_elements = time.perf_counter() - began_s, max(elements, FEW_ELEMENTS)
            _Allowance.seconds -= self._last_s

    def __reduce__(self) -> str:
        return self.py_func.__qualname__

    def machine_code(self) -> Any:
        """Return what numba makes of the function, and let it call the same of the kernels that it names."""
        with _making:
            if self._machine_code is None:
                self._machine_code = _dispatcher(self.py_func)
            return self._machine_code

    def compilations(self) -> int:
        """Return how often no copy was on disk."""
        return 0 if self._machine_code is None else sum(self._machine_code.stats.cache_misses.values())


def _dispatcher(function: Callable[..., Any]) -> Any:
    import numba  # noqa: PLC0415 - half a second, so only where a kernel is called

    names = function.__globals__
    for name, kernel in [(name, value) for name, value in names.items() if isinstance(value, Kernel)]:
        if name in function.__code__.co_names:
            names[name] = kernel.machine_code()  # numba does not know the class Kernel
    # numba reads this setting when the kernel is made, not when it is first called
    numba.config.CACHE_DIR = str(_cache_folder(function.__module__))  # type: ignore[attr-defined]
    return numba.njit(function, cache=True, nogil=True, error_model="numpy")


def _elements(arguments: tuple[Any, ...]) -> int:
    """Return how many numbers `arguments` have in all."""
    return sum(_elements(one) if isinstance(one, tuple) else getattr(one, "size", 1) for one in arguments)


def _plain(result: Any) -> Any:
    """Return numbers as machine code returns them: as Python's own."""
    if isinstance(result, tuple):
        values = map(_plain, result)
        return result._make(values) if hasattr(result, "_make") else tuple(values)
    return result.item() if isinstance(result, np.generic) else result


@contextmanager
def machine_code_only() -> Iterator[None]:
    """Run no kernel in Python, however small its arguments."""
    before, _Allowance.is_withheld = _Allowance.is_withheld, True
    try:
        yield
    finally:
        _Allowance.is_withheld = before


def compiled(function: Function) -> Function:
    """Compile `function` to machine code at its first call and keep the code on disk for later processes.

    The interpreter lock is released inside. Array arguments must be writable and of the documented types:
    every new combination of types is one more compilation.
    """
    return cast(Function, _registered(Kernel(function)))


def compiled_when_large(function: Function) -> Function:
    """Like `compiled`, but small calls run in Python: for kernels of whole numbers within 64 bits.

    Sums of floats may be rounded in another order by machine code, so that results would depend on the clock.
    """
    return cast(Function, _registered(Kernel(function, 1.5)))


def compiled_when_long(function: Function) -> Function:
    """Like `compiled_when_large`, where the work is in proportion to the elements of the arguments."""
    return cast(Function, _registered(Kernel(function, 1.0)))


def _registered(kernel: Kernel) -> Kernel:
    _registry.append(kernel)
    return kernel


def inlined(function: Function) -> Function:
    """Like `compiled`, for small helpers that are called from other kernels only."""
    return cast(Function, Kernel(function))


def compilations() -> int:
    """Return how many kernels had to be compiled in this process because the disk held no copy."""
    return sum(kernel.compilations() for kernel in _registry)
