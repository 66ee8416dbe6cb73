"""The data of one rank in one run: made before it, checked after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from chorale.runners.api.elements import UNTOUCHED, DataPattern, Vector, expected_output, input_data, required_pieces
from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.program import Buffer


@dataclass(frozen=True, slots=True)
class DataLayout:
    """How a vector is laid out on ranks: `chunks` of the whole vector, and whether input and output share memory."""

    collective: Collective
    ranks: int
    chunks: int
    in_place: bool


class RankMemory:
    """Holds the data of one run; `elements` is the length of the whole vector, a multiple of the chunks.

    given: where input and output lie, at least as long as they are and overlapping in place; else they are made
    """

    def __init__(
        self,
        layout: DataLayout,
        rank: int,
        elements: int,
        dtype: str,
        pattern: DataPattern,
        given: tuple[Vector, Vector] | None = None,
    ) -> None:
        self._layout = layout
        self._rank = rank
        self._elements = elements
        self._pattern = pattern
        self._buffers = self._allocate(dtype) if given is None else self._views(*given)
        self._buffers["i"][:] = input_data(layout.collective, pattern, rank, elements)

    @property
    def input(self) -> Vector:
        """The input, as a view."""
        return self._buffers["i"]

    @property
    def output(self) -> Vector:
        """The output, as a view."""
        return self._buffers["o"]

    def mismatch(self) -> str | None:
        """Return in one line what is wrong with the result, None if every element is right."""
        expected = self._expected()
        found = None if expected is None else _difference("output", self._buffers["o"], expected)
        if found is None and not self._layout.in_place:
            before = input_data(self._layout.collective, self._pattern, self._rank, self._elements)
            found = _difference("input, which must stay as it was,", self._buffers["i"], before)
        return found

    def _expected(self) -> Vector | None:
        custom = self._layout.collective.custom
        if custom is None:
            return expected_output(self._layout.collective, self._pattern, self._rank, self._elements)
        expected = self._buffers["o"].copy()  # what is not required may be anything
        for first, values in required_pieces(custom, self._pattern, self._rank, self._elements):
            expected[first : first + len(values)] = values
        return expected

    @property
    def _lengths(self) -> Mapping[Buffer, int]:
        name, shard = self._layout.collective.name, self._elements // self._layout.ranks
        return {
            "i": shard if name is CollectiveName.ALLGATHER else self._elements,
            "o": shard if name is CollectiveName.REDUCE_SCATTER else self._elements,
        }

    def _views(self, given_input: Vector, given_output: Vector) -> dict[Buffer, Vector]:
        buffers: dict[Buffer, Vector] = {
            "i": given_input[: self._lengths["i"]],
            "o": given_output[: self._lengths["o"]],
        }
        buffers["o"][:] = UNTOUCHED
        return buffers

    def _allocate(self, dtype: str) -> dict[Buffer, Vector]:
        name, shard = self._layout.collective.name, self._elements // self._layout.ranks
        lengths = self._lengths
        buffers = {buffer: np.full(length, UNTOUCHED, dtype) for buffer, length in lengths.items()}
        if self._layout.in_place:
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
