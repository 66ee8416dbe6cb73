"""The memory of a rank: buffer sizes in chunks, and the cells that belong to both input and output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.programs.program import Buffer, BufferRef, Program

if TYPE_CHECKING:
    from chorale.synth.programs.postconditions import AnyProgram

SPLIT_BY_RANK = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL)
"""For these collectives, the vector has one shard per rank, so its chunk count must be a multiple of the rank count."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory of one rank as a row of cells, one cell per chunk.

    input_base, output_base, scratch_base: cell of chunk 0 of each buffer; in place, input and output overlap
    cells: number of cells
    """

    input_base: int
    output_base: int
    scratch_base: int
    cells: int

    def cell(self, ref: BufferRef) -> int:
        """Return the cell of the first chunk of an operand. The other chunks are in the following cells."""
        return self.base(ref.buffer) + ref.offset

    def base(self, buffer: Buffer) -> int:
        if buffer == "i":
            return self.input_base
        return self.output_base if buffer == "o" else self.scratch_base


@dataclass(frozen=True, slots=True)
class BufferShape:
    """The buffers of all ranks. `chunks`: chunks per vector; `in_place`: whether input and output share memory."""

    collective: CollectiveName
    chunks: int
    ranks: int
    in_place: bool
    root: int | None = None

    @property
    def identities(self) -> int:
        """Number of distinct data chunks: `chunks`, times `ranks` in an alltoall, in which vectors differ."""
        return self.chunks * (self.ranks if self.collective == CollectiveName.ALLTOALL else 1)

    def initial_chunks(self, rank: int) -> NDArray[np.int64]:
        """Return the indices of the chunks that `rank` holds initially, in buffer order."""
        share = self.chunks // self.ranks
        if self.collective == CollectiveName.ALLGATHER:
            return np.arange(rank * share, (rank + 1) * share)
        if self.collective == CollectiveName.ALLTOALL:
            return np.arange(rank * self.chunks, (rank + 1) * self.chunks)
        has_none = self.collective == CollectiveName.BROADCAST and rank != self.root
        return np.arange(0 if has_none else self.chunks)

    def result_chunks(self, rank: int) -> NDArray[np.int64]:
        """Return the indices of the chunks that `rank` must hold at the end, in buffer order."""
        share = self.chunks // self.ranks
        if self.collective == CollectiveName.REDUCE_SCATTER:
            return np.arange(rank * share, (rank + 1) * share)
        if self.collective == CollectiveName.ALLTOALL:
            senders = np.arange(self.ranks)[:, None]
            return (senders * self.chunks + rank * share + np.arange(share)).ravel()
        has_none = self.collective == CollectiveName.REDUCE and rank != self.root
        return np.arange(0 if has_none else self.chunks)

    def layout(self, rank: int, scratch_chunks: int) -> Layout:
        """Return the layout of `rank`'s memory.

        In place: allgather `i[k]` is `o[rank * N / ranks + k]`; reduce_scatter `o[k]` is
        `i[rank * N / ranks + k]`; otherwise `i[k]` is `o[k]`.
        """
        inputs, outputs = buffer_chunks(self.collective, self.chunks, self.ranks)
        if not self.in_place:
            return Layout(0, inputs, inputs + outputs, inputs + outputs + scratch_chunks)
        own = rank * (self.chunks // self.ranks)
        input_base = own if self.collective == CollectiveName.ALLGATHER else 0
        output_base = own if self.collective == CollectiveName.REDUCE_SCATTER else 0
        return Layout(input_base, output_base, self.chunks, self.chunks + scratch_chunks)


def buffer_chunks(collective: CollectiveName, chunks: int, ranks: int) -> tuple[int, int]:
    """Return (input chunks, output chunks) of a rank's complete buffers if the vector has `chunks` chunks."""
    if collective == CollectiveName.ALLGATHER:
        return chunks // ranks, chunks
    if collective == CollectiveName.REDUCE_SCATTER:
        return chunks, chunks // ranks
    return chunks, chunks


def declared_chunks(collective: Collective, chunks: int, ranks: int) -> tuple[int, int]:
    """Return (input chunks, output chunks) of the buffers that a rank declares.

    A custom collective may declare less than the complete vector, although memory for the complete vector is available.
    """
    if collective.custom is None:
        return buffer_chunks(collective.name, chunks, ranks)
    parts = max(1, chunks // collective.custom.chunks)
    return collective.custom.input_chunks * parts, collective.custom.output_chunks * parts


def cell_name(shape: BufferShape, rank: int, layout: Layout, offset: int) -> str:
    """Return the name of a cell of `rank`, such as `o[3] of rank 1`. `offset` counts from the start of its memory."""
    if offset >= layout.scratch_base:
        return f"s[{offset - layout.scratch_base}] of rank {rank}"
    outputs = buffer_chunks(shape.collective, shape.chunks, shape.ranks)[1]
    if 0 <= offset - layout.output_base < outputs:
        return f"o[{offset - layout.output_base}] of rank {rank}"
    return f"i[{offset - layout.input_base}] of rank {rank}"


def shape_of(program: AnyProgram) -> BufferShape:
    """Return the shape of the buffers of `program`, which is the same on all ranks."""
    collective = program.collective
    return BufferShape(collective.name, program.chunks, len(program.ranks), program.in_place, collective.root)


def layout_of(program: Program, rank: int) -> Layout:
    return shape_of(program).layout(rank, program.ranks[rank].scratch_chunks)
