"""The library with the machine code of all kernels: how it is loaded, and how a kernel in it is called."""

from __future__ import annotations

import ctypes
import typing
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

from chorale.synth.kernels.native_call import Libraries, NativeCall
from chorale.synth.kernels.sources import NATIVE, digest
from chorale.synth.kernels.types import symbol_of, variants

LIBRARY = NATIVE / "kernels.so"
"""Where `python -m chorale.runners.engine.kernels` writes it."""


@cache
def _library() -> Libraries | None:
    """Return the library, once as it releases the interpreter lock and once as it keeps it; None without one that was
    made from the sources as they are."""
    try:
        library = ctypes.CDLL(str(LIBRARY))
    except OSError:
        _warn("there is no machine code of the kernels")
        return None
    library.chorale_sources.restype = ctypes.c_char_p
    stated, *files = library.chorale_sources().decode().split("\n")
    if stated != digest(files):
        _warn("the machine code of the kernels is older than their sources")
        return None
    holding = ctypes.PyDLL(str(LIBRARY))
    holding.chorale_release.argtypes = [ctypes.c_void_p]
    holding.chorale_release.restype = None
    return Libraries(library, holding)


def _warn(reason: str) -> None:
    way_out = "run `make setup`, or `python -m chorale.runners.engine.kernels` with a C++ compiler"
    warnings.warn(f"{reason}: they run in Python, a hundred times slower; {way_out}", RuntimeWarning, stacklevel=2)


def native_kernel(function: Callable[..., Any]) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return what calls the machine code of `function` with a tuple of arguments, None if there is no library."""
    library = _library()
    if library is None:
        return None
    hints = typing.get_type_hints(function)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    calls = [
        NativeCall(library, symbol_of(function, number), dict(zip(names, kinds, strict=False)), hints["return"])
        for number, kinds in enumerate(variants([hints[name] for name in names]))
    ]
    return calls[0] if len(calls) == 1 else partial(_call_first, calls)


def _call_first(calls: Sequence[NativeCall], arguments: tuple[Any, ...]) -> Any:
    """Call the variant that takes such arrays; the last one says what is wrong if none does."""
    return next((call for call in calls if call.takes(arguments)), calls[-1])(arguments)
