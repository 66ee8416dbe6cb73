"""How the buffers of a rank lie in memory: sizes in chunks, and which cells input and output share."""

from __future__ import annotations

from dataclasses import dataclass

from synth.collective import CollectiveName
from synth.lowering.program import Buffer, Place, Program


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory of one rank as one row of cells, one cell per chunk.

    input_base, output_base, scratch_base: the cell of chunk 0 of each buffer; in place, input and output overlap.
    """

    input_base: int
    output_base: int
    scratch_base: int
    cells: int

    def cell(self, place: Place) -> int:
        """Return the cell of the first chunk of an operand; the others follow."""
        return self.base(place.buffer) + place.offset

    def base(self, buffer: Buffer) -> int:
        if buffer == "i":
            return self.input_base
        return self.output_base if buffer == "o" else self.scratch_base


def buffer_chunks(collective: CollectiveName, chunks: int, ranks: int) -> tuple[int, int]:
    """Return the chunks of the whole input and output buffer of a rank, `chunks` being those of the vector."""
    if collective == CollectiveName.ALLGATHER:
        return chunks // ranks, chunks
    if collective == CollectiveName.REDUCE_SCATTER:
        return chunks, chunks // ranks
    return chunks, chunks


def layout_of(program: Program, rank: int) -> Layout:
    """Return the memory layout of `rank`.

    In place: allgather `i[k]` is `o[rank * N / ranks + k]`; reduce_scatter `o[k]` is `i[rank * N / ranks + k]`;
    else `i[k]` is `o[k]`.
    """
    name, ranks = program.collective.name, len(program.ranks)
    inputs, outputs = buffer_chunks(name, program.chunks, ranks)
    scratch = program.ranks[rank].scratch_chunks
    if not program.in_place:
        return Layout(0, inputs, inputs + outputs, inputs + outputs + scratch)
    own = rank * (program.chunks // ranks)
    input_base = own if name == CollectiveName.ALLGATHER else 0
    output_base = own if name == CollectiveName.REDUCE_SCATTER else 0
    return Layout(input_base, output_base, program.chunks, program.chunks + scratch)
