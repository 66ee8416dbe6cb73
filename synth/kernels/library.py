"""The library with the machine code of all kernels: how it is loaded, and how a kernel in it is called."""

from __future__ import annotations

import ctypes
import typing
import warnings
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from chorale.synth.kernels.native_call import Libraries, NativeCall, entry_of
from chorale.synth.kernels.sources import NATIVE, digest
from chorale.synth.kernels.types import symbol_of, variants

LIBRARY = NATIVE / "kernels.so"
"""Where `python -m chorale.runners.engine.kernels` writes it."""


def library_state() -> str:
    """Return "ready" for a library that was made from the sources as they are, else what is wrong with it."""
    try:
        libraries = load(LIBRARY)
    except OSError:
        return "there is no machine code of the kernels"
    stated, *files = libraries.releasing.chorale_sources().decode().split("\n")
    return "ready" if stated == digest(files) else "the machine code of the kernels is older than their sources"


@cache
def _library() -> Libraries | None:
    """Return the library that lies beside the sources; None, with a warning, if it is not ready."""
    state = library_state()
    if state == "ready":
        return load(LIBRARY)
    way_out = "run `make setup`, or `python -m chorale.runners.engine.kernels` with a C++ compiler"
    warnings.warn(f"{state}: they run in Python, ten times slower and more; {way_out}", RuntimeWarning, stacklevel=2)
    return None


def load(path: Path) -> Libraries:
    """Return the library at `path`, once as its calls release the interpreter lock and once as they keep it."""
    releasing, holding = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))
    releasing.chorale_sources.restype = ctypes.c_char_p
    holding.chorale_message.restype = ctypes.c_char_p
    holding.chorale_release.argtypes = [ctypes.c_void_p]
    holding.chorale_release.restype = None
    return Libraries(releasing, holding)


def native_kernel(function: Callable[..., Any]) -> Callable[[tuple[Any, ...]], Any] | None:
    """Return what calls the machine code of `function` with a tuple of arguments, None if there is no library."""
    libraries = _library()
    if libraries is None or not hasattr(libraries.releasing, entry_of(symbol_of(function, 0))):
        return None  # without its entry: a kernel in a file that had none when the library was made
    return calls_of(function, libraries)


def calls_of(function: Callable[..., Any], libraries: Libraries) -> Callable[[tuple[Any, ...]], Any]:
    """Return what calls `function` in `libraries`: the variant of it that takes the arrays at hand."""
    hints = typing.get_type_hints(function)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    calls = [
        NativeCall(libraries, symbol_of(function, number), dict(zip(names, kinds, strict=False)), hints["return"])
        for number, kinds in enumerate(variants([hints[name] for name in names]))
    ]
    return calls[0] if len(calls) == 1 else partial(_call_first, calls)


def _call_first(calls: Sequence[NativeCall], arguments: tuple[Any, ...]) -> Any:
    """Call the variant that takes such arrays; the last one says what is wrong if none does."""
    return next((call for call in calls if call.takes(arguments)), calls[-1])(arguments)
