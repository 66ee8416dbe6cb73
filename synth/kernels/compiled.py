"""The only file that imports numba: how kernels are compiled and cached on disk."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from functools import lru_cache, update_wrapper
from pathlib import Path
from typing import Any, TypeVar, cast

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


class Kernel:
    """A function that numba compiles at its first call; numba itself is imported only then."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.py_func = function
        self._machine_code: Any = None
        update_wrapper(self, function)

    def __call__(self, *arguments: Any) -> Any:
        return (self._machine_code or self.machine_code())(*arguments)

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


def compiled(function: Function) -> Function:
    """Compile `function` to machine code at its first call and keep the code on disk for later processes.

    The interpreter lock is released inside. Array arguments must be writable and of the documented types:
    every new combination of types is one more compilation.
    """
    kernel = Kernel(function)
    _registry.append(kernel)
    return cast(Function, kernel)


def inlined(function: Function) -> Function:
    """Like `compiled`, for small helpers that are called from other kernels only."""
    return cast(Function, Kernel(function))


def compilations() -> int:
    """Return how many kernels had to be compiled in this process because the disk held no copy."""
    return sum(kernel.compilations() for kernel in _registry)
