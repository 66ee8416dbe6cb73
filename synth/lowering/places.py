"""Where the chunks of every rank lie while a program runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from synth.collective import CollectiveName
from synth.lowering.memory import Shape, buffer_chunks
from synth.lowering.messages import Message
from synth.lowering.program import Buffer, Place

Codes = NDArray[np.int64]
"""Places of consecutive chunks as numbers: `buffer << 32 | offset`, so that neighbours differ by one. -1: nowhere."""

_BUFFERS: tuple[Buffer, ...] = ("i", "o", "s")
_SHIFT = 32


def place_of(code: int) -> Place:
    """Return the place that `code` stands for."""
    return Place(_BUFFERS[code >> _SHIFT], code & (1 << _SHIFT) - 1)


class Places:
    """Where each chunk of each rank is (`home`) and where what arrives for it is put (`work`): int64[ranks, chunks].

    A chunk has its home in the input until something is written for it, then where it was written. So the first
    reduction reads the input and writes elsewhere, and an out-of-place program needs no copy before it.
    """

    def __init__(self, shape: Shape, received: NDArray[np.bool_]) -> None:
        self.home: Codes = np.full((shape.ranks, shape.chunks), -1, dtype=np.int64)
        self.work: Codes = np.full((shape.ranks, shape.chunks), -1, dtype=np.int64)
        self.scratch_chunks = [0] * shape.ranks
        self._shape = shape
        for rank in range(shape.ranks):
            if shape.in_place:
                self._put_in_place(rank)
            else:
                self._put_out_of_place(rank, received[rank])

    @property
    def used_chunks(self) -> tuple[int, int]:
        """Return the chunks of input and output as a rank declares them: 0 where a buffer is never named."""
        inputs, outputs = buffer_chunks(self._shape.collective, self._shape.chunks, self._shape.ranks)
        if not self._shape.in_place:
            return inputs, outputs
        return (inputs, 0) if self._shape.collective == CollectiveName.REDUCE_SCATTER else (0, outputs)

    def final(self, rank: int) -> tuple[int, Codes]:
        """Return the first chunk of the result of `rank` and where it and those after it must be at the end."""
        scatters = self._shape.collective == CollectiveName.REDUCE_SCATTER
        if not scatters:
            return 0, _codes("o", self._shape.chunks)
        own = self._own(rank)
        return own.start, self.work[rank, own].copy()

    def _own(self, rank: int) -> slice:
        share = self._shape.chunks // self._shape.ranks
        return slice(rank * share, (rank + 1) * share)

    def _put_in_place(self, rank: int) -> None:
        scatters = self._shape.collective == CollectiveName.REDUCE_SCATTER
        self.work[rank] = _codes("i" if scatters else "o", self._shape.chunks)
        held = self._own(rank) if self._shape.collective == CollectiveName.ALLGATHER else slice(None)
        self.home[rank, held] = self.work[rank, held]

    def _put_out_of_place(self, rank: int, received: NDArray[np.bool_]) -> None:
        own = self._own(rank)
        held = own if self._shape.collective == CollectiveName.ALLGATHER else slice(0, self._shape.chunks)
        self.home[rank, held] = _codes("i", held.stop - held.start)
        if self._shape.collective != CollectiveName.REDUCE_SCATTER:
            self.work[rank] = _codes("o", self._shape.chunks)
            return
        passing = received.copy()
        passing[own] = False
        self.scratch_chunks[rank] = int(passing.sum())
        self.work[rank, passing] = _codes("s", self.scratch_chunks[rank])
        self.work[rank, own] = _codes("o", own.stop - own.start)


def received_chunks(shape: Shape, steps: Sequence[Sequence[Message]]) -> NDArray[np.bool_]:
    """Return bool[ranks, chunks]: which chunks ever arrive at which rank."""
    received = np.zeros((shape.ranks, shape.chunks), dtype=np.bool_)
    for messages in steps:
        for message in messages:
            received[message.receiver, message.first : message.end] = True
    return received


def _codes(buffer: Buffer, count: int) -> Codes:
    return (_BUFFERS.index(buffer) << _SHIFT) + np.arange(count, dtype=np.int64)
