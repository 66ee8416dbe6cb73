"""The data of one rank in one run: input, output and scratch, laid out before it and checked after it."""

from __future__ import annotations

import numpy as np

from chorale.runners.api.elements import UNTOUCHED, DataPattern, Vector, expected_output, input_data
from chorale.runners.execution.node_plan import NodePlan
from chorale.synth.collective import CollectiveName
from chorale.synth.programs.program import Buffer, BufferRef


class RankMemory:
    """Holds the data of one run; `elements` is the length of the whole vector, a multiple of the chunks."""

    def __init__(self, plan: NodePlan, rank: int, elements: int, dtype: str, pattern: DataPattern) -> None:
        self._plan = plan
        self._rank = rank
        self._elements = elements
        self._pattern = pattern
        self.chunk_elements = elements // plan.chunks
        self._buffers: dict[Buffer, Vector] = self._allocate(dtype)
        self._buffers["i"][:] = input_data(plan.collective, pattern, rank, elements)

    @property
    def input(self) -> Vector:
        """The input, as a view."""
        return self._buffers["i"]

    @property
    def output(self) -> Vector:
        """The output, as a view."""
        return self._buffers["o"]

    def view(self, ref: BufferRef, count: int) -> Vector:
        """Return the elements of `count` chunks at `ref`, as a view."""
        size = self.chunk_elements
        return self._buffers[ref.buffer][ref.offset * size : (ref.offset + count) * size]

    def mismatch(self) -> str | None:
        """Return in one line what is wrong with the result, None if every element is right."""
        expected = expected_output(self._plan.collective, self._pattern, self._rank, self._elements)
        found = None if expected is None else _difference("output", self._buffers["o"], expected)
        if found is None and not self._plan.in_place:
            before = input_data(self._plan.collective, self._pattern, self._rank, self._elements)
            found = _difference("input, which must stay as it was,", self._buffers["i"], before)
        return found

    def _allocate(self, dtype: str) -> dict[Buffer, Vector]:
        name, shard = self._plan.collective.name, self._elements // self._plan.ranks
        lengths: dict[Buffer, int] = {
            "i": shard if name is CollectiveName.ALLGATHER else self._elements,
            "o": shard if name is CollectiveName.REDUCE_SCATTER else self._elements,
            "s": self._plan.scratch_chunks * self.chunk_elements,
        }
        buffers = {buffer: np.full(length, UNTOUCHED, dtype) for buffer, length in lengths.items()}
        if self._plan.in_place:
            whole: Buffer = "o" if name is CollectiveName.ALLGATHER else "i"
            other: Buffer = "i" if whole == "o" else "o"
            start = self._rank * shard if lengths["i"] != lengths["o"] else 0
            buffers[other] = buffers[whole][start : start + lengths[other]]
        return buffers


def _difference(what: str, found: Vector, expected: Vector) -> str | None:
    wrong = np.flatnonzero(found != expected)
    if not len(wrong):
        return None
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {len(expected)} elements of the {what} are wrong, "
        f"the first is element {first}: {found[first]:.15g} instead of {expected[first]}"
    )
