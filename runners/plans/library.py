"""The executor's library: built at first use, loaded with ctypes, wrapped in a class.

The interface is that of native/chorale_plans.h. Calls let other threads of Python run.
"""

from __future__ import annotations

import ctypes
from array import array
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.engine.library import DataType

NATIVE = Path(__file__).parent / "native"
_LIBRARY = "libchorale_plans.so"
_OK, _TIMEOUT = 0, 2


class PlanError(Exception):
    """A call of the executor failed.

    is_late: whether the limit of its time has passed
    blocked: then a line for each block that was not finished: block, step, what it waited for
    """

    def __init__(self, message: str, is_late: bool = False, blocked: str = "") -> None:
        super().__init__(message)
        self.is_late = is_late
        self.blocked = blocked


@dataclass(frozen=True, slots=True)
class RankRegion:
    """bytes: of the memory of each rank; data: where in them its chunks begin, after its counters."""

    bytes: int
    data: int


class PlanExecutor:
    """One rank's executor. It belongs to one thread at a time; see native/chorale_plans.h for the contract."""

    def __init__(self, rank: int, ranks: int, library: Path | None = None) -> None:
        self._library = load_plan_library(library or plan_library())
        self._open = self._library.chorale_plans_new(rank, ranks)

    def close(self) -> None:
        """End the thread behind ports. Safe to call twice."""
        executor, self._open = self._open, None
        if executor:
            self._library.chorale_plans_free(executor)

    def load(self, words: array[int]) -> int:
        """Return the number of the plan that `words` (of `encode_plan`) say; PlanError if they say none."""
        buffer = (ctypes.c_int64 * len(words)).from_buffer(words)
        number = int(self._library.chorale_plan_load(self._open, buffer, len(words)))
        if number < 0:
            raise PlanError(self._message())
        return number

    def region(self, plan: int, piece_bytes: int) -> RankRegion:
        """Return what each rank needs with pieces of chunks of `piece_bytes`."""
        size, data = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(
            self._library.chorale_plan_shape(self._open, plan, piece_bytes, ctypes.byref(size), ctypes.byref(data))
        )
        return RankRegion(size.value, data.value)

    def bind(self, plan: int, memory: int, piece_bytes: int, type_: DataType) -> None:
        """Use the memory of all ranks at the address `memory` from now on."""
        self._check(self._library.chorale_plan_bind(self._open, plan, memory, piece_bytes, type_))

    def execute(self, plan: int, limit_s: float, not_before_ns: int) -> int:
        """Take part in one call; return its end on CLOCK_MONOTONIC in ns. PlanError where it does not end in time."""
        end_ns = ctypes.c_int64()
        self._check(self._library.chorale_plan_execute(self._open, plan, limit_s, not_before_ns, ctypes.byref(end_ns)))
        return end_ns.value

    def _check(self, status: int) -> None:
        if status != _OK:
            blocked = self._library.chorale_plans_blocked(self._open).decode()
            raise PlanError(self._message(), status == _TIMEOUT, blocked)

    def _message(self) -> str:
        return str(self._library.chorale_plans_error(self._open).decode(errors="replace"))


def plan_library() -> Path:
    """Return the library, built first where that was not done before. Unavailable without a compiler."""
    sources = (*sorted(NATIVE.glob("*.cpp")), ENGINE / "element_types.cpp")
    flags = ("-O3", "-shared", "-fPIC", "-pthread")
    return build_native(NativeTarget(_LIBRARY, sources, flags, (ENGINE,)))


@cache
def load_plan_library(path: Path) -> ctypes.CDLL:
    """Return the library at `path` with the types of its functions."""
    library = ctypes.CDLL(str(path))
    pointer, text, number, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int64, ctypes.c_size_t
    signatures = {
        "chorale_plans_new": (pointer, (ctypes.c_int, ctypes.c_int)),
        "chorale_plans_free": (None, (pointer,)),
        "chorale_plans_error": (text, (pointer,)),
        "chorale_plans_blocked": (text, (pointer,)),
        "chorale_plan_load": (number, (pointer, pointer, size)),
        "chorale_plan_shape": (ctypes.c_int, (pointer, number, size, pointer, pointer)),
        "chorale_plan_bind": (ctypes.c_int, (pointer, number, pointer, size, ctypes.c_int)),
        "chorale_plan_execute": (ctypes.c_int, (pointer, number, ctypes.c_double, number, pointer)),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
