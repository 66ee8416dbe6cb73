"""The plans of one rank: their executor, and the memory of all ranks, which is a file that all have mapped."""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.api.elements import Vector
from chorale.runners.engine.library import DataType
from chorale.runners.plans.encoding import pieces_of_the_vector
from chorale.runners.plans.library import PlanExecutor
from chorale.synth.programs.memory import Layout
from chorale.synth.programs.plans.moves import pieces_of_a_chunk
from chorale.synth.programs.plans.plan import ExecutionPlan


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
