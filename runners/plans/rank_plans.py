"""The plans of one rank: their executor, and the memory of all ranks, which is a file that all have mapped."""

from __future__ import annotations

import ctypes
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.api.elements import Vector
from chorale.runners.engine.build import NativeTarget, build_native
from chorale.runners.engine.library import NATIVE as ENGINE
from chorale.runners.engine.library import DataType
from chorale.runners.measurement.machine import Facts
from chorale.runners.plans.encoding import pieces_of_the_vector
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import ExecutionPlan, Kind, Operation

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


@dataclass(frozen=True, slots=True)
class PlanBuffers:
    """What a rank has to know of the memory of a plan: pieces of the vector and of a chunk, and its own buffers."""

    pieces: int
    pieces_of_a_chunk: int
    layout: Layout

    @staticmethod
    def of(plan: ExecutionPlan, rank: int) -> PlanBuffers:
        """Return those of `rank`."""
        return PlanBuffers(pieces_of_the_vector(plan), pieces_of_a_chunk(plan, 1), plan.layout(rank))

    def to_json(self) -> list[int]:
        """Return plain JSON values."""
        layout = self.layout
        cells = [layout.input_base, layout.output_base, layout.scratch_base, layout.cells]
        return [self.pieces, self.pieces_of_a_chunk, *cells]

    @staticmethod
    def from_json(value: Sequence[int]) -> PlanBuffers:
        """Return what `to_json` wrote."""
        return PlanBuffers(value[0], value[1], Layout(*value[2:]))


@dataclass(frozen=True, slots=True)
class _Context:
    """A plan in use: its number in the executor, and views of the own input and output from their first chunk on."""

    number: int
    input: Vector
    output: Vector


class RankPlans:
    """Plans that are loaded on one rank. Scratch, signals, packets and semaphores stay between calls at one size.

    memory: descriptor of the file that all ranks share; all ranks make the same calls in the same order
    """

    def __init__(self, rank: int, ranks: int, memory: int) -> None:
        self._rank, self._ranks, self._memory = rank, ranks, memory
        self._executor: PlanExecutor | None = None
        self._parts: list[tuple[int, PlanBuffers]] = []
        self._contexts: dict[int, _Context] = {}
        self._size: tuple[int, str] = (0, "")
        self._used_bytes = 0

    def load(self, library: Path, parts: Iterable[tuple[bytes, PlanBuffers]]) -> None:
        """Replace the plans by those of `parts`, words and buffers; the n-th is called n from now on."""
        self.close()
        self._executor = PlanExecutor(self._rank, self._ranks, library)
        self._parts = [(self._executor.load(array("q", words)), buffers) for words, buffers in parts]

    def buffers(self, plan: int, elements: int, dtype: str) -> tuple[Vector, Vector]:
        """Return views of the own memory: from the first chunk of the input on, and of the output; use them next."""
        if self._size != (elements, dtype):
            self._forget()
            self._size = elements, dtype
        if plan not in self._contexts:
            self._contexts[plan] = self._bound(plan, elements, np.dtype(dtype))
        context = self._contexts[plan]
        return context.input, context.output

    def execute(self, plan: int, limit_s: float, not_before_ns: int) -> int:
        """Take part in a call; return its end, see `PlanExecutor.execute`."""
        assert self._executor is not None
        return self._executor.execute(self._contexts[plan].number, limit_s, not_before_ns)

    def close(self) -> None:
        """Let go of the plans; threads end."""
        if self._executor is not None:
            self._executor.close()
            self._executor = None
        self._forget()

    def _forget(self) -> None:
        self._contexts.clear()
        self._size, self._used_bytes = (0, ""), 0

    def _bound(self, plan: int, elements: int, dtype: np.dtype[Any]) -> _Context:
        """Map memory for a plan, where no other has any, and make the own part of it what it is before a first call."""
        assert self._executor is not None
        number, part = self._parts[plan]
        piece_bytes = elements // part.pieces * dtype.itemsize
        region = self._executor.region(number, piece_bytes)
        begin = self._used_bytes
        total = -(-region.bytes * self._ranks // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._used_bytes = begin + total
        if os.fstat(self._memory).st_size < self._used_bytes:
            os.ftruncate(self._memory, self._used_bytes)  # others make it as long, nobody makes it shorter
        shared = np.frombuffer(mmap.mmap(self._memory, total, offset=begin), dtype=np.uint8)
        own = shared[self._rank * region.bytes : (self._rank + 1) * region.bytes]
        own[:] = 0
        type_ = DataType[dtype.name.upper()]
        self._executor.bind(number, shared.ctypes.data, piece_bytes, type_)
        chunk_bytes = piece_bytes * part.pieces_of_a_chunk
        cells = own[region.data : region.data + part.layout.cells * chunk_bytes]
        input_, output = (
            cells[base * chunk_bytes :].view(dtype) for base in (part.layout.input_base, part.layout.output_base)
        )
        return _Context(number, input_, output)


MEMORY = "memory shared by the processes of ranks"
PORTS = "memory shared by the processes of ranks, written by a proxy thread of the sending rank"
SWITCH = "emulated: the rank that asks reads, adds and stores the memory of all ranks of the group"

_STAND_INS: dict[Kind, tuple[str, str]] = {
    "memory": ("memory_channels", MEMORY),
    "port": ("port_channels", PORTS),
    "switch": ("switch_channels", SWITCH),
}


def plan_facts(plans: Iterable[ExecutionPlan]) -> Facts:
    """Return, for each kind of channels that `plans` use, what it is here; nothing without plans."""
    used = {operation.kind for plan in plans for operation in _with_channels(plan)}
    return {key: text for kind, (key, text) in _STAND_INS.items() if kind in used}


def _with_channels(plan: ExecutionPlan) -> Iterator[Operation]:
    for body in plan.ranks:
        for block in body.blocks:
            for operation in block.every_operation():
                if operation.action.moves or operation.channels:
                    yield operation
