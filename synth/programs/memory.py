"""Models the memory of ranks: its layout, its contents before a collective, and its required contents afterwards.

Switches that reduce or multicast data are modelled as processes, numbered after the ranks. These processes contribute
no data and need no result, so a program for ranks and switches executes a custom collective.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Cell, Collective, CollectiveName, CustomCollective, RequiredChunk
from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.program import (
    AnyProgram,
    Buffer,
    BufferRef,
    Program,
    ProgramViolation,
    RankProgram,
    ThreadBlock,
)

SPLIT_BY_RANK = (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER, CollectiveName.ALLTOALL)
"""For these collectives, the vector has one shard per rank, so its chunk count must be a multiple of the rank count."""
NOTHING = -1
ANYTHING = -(2**62)
"""Stands for the identity of an expected chunk if the chunk may contain anything."""
_WORD = 64
_MAX_NAMED = 8
MAX_REPORTED = 20


@dataclass(frozen=True, slots=True)
class Layout:
    """The memory of one rank as a sequence of cells, one per chunk.

    input_base, output_base, scratch_base: first cell of each buffer; in in-place programs, input and output overlap
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
        """Number of distinct data chunks: `chunks`, or `chunks` * `ranks` in an alltoall, where all vectors differ."""
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

        If the program is in place, `i[k]` of an allgather is `o[rank * N / ranks + k]`, `o[k]` of a reduce_scatter is
        `i[rank * N / ranks + k]`, and `i[k]` of any other collective is `o[k]`.
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

    The buffers of a custom collective may be smaller than the vector, but ranks have memory for the complete vector.
    """
    if collective.custom is None:
        return buffer_chunks(collective.name, chunks, ranks)
    parts = max(1, chunks // collective.custom.chunks)
    return collective.custom.input_chunks * parts, collective.custom.output_chunks * parts


def cell_name(shape: BufferShape, rank: int, layout: Layout, offset: int) -> str:
    """Return the name of cell `offset` in the memory of `rank`, for example `o[3] of rank 1`."""
    if offset >= layout.scratch_base:
        return f"s[{offset - layout.scratch_base}] of rank {rank}"
    outputs = buffer_chunks(shape.collective, shape.chunks, shape.ranks)[1]
    if 0 <= offset - layout.output_base < outputs:
        return f"o[{offset - layout.output_base}] of rank {rank}"
    return f"i[{offset - layout.input_base}] of rank {rank}"


def shape_of(program: AnyProgram) -> BufferShape:
    """Return the buffer shape of `program`, which is the same on all ranks."""
    collective = program.collective
    return BufferShape(collective.name, program.chunks, len(program.ranks), program.in_place, collective.root)


def layout_of(program: Program, rank: int) -> Layout:
    return shape_of(program).layout(rank, program.ranks[rank].scratch_chunks)


class ChunkValues(NamedTuple):
    """Symbolic contents of memory cells: each holds the sum of some ranks' contributions to one chunk of the vector.

    identity: int64[cells], index of the chunk; NOTHING if the cell was never written; smaller values mark results that
              were computed from a chunk that was never written
    members:  uint64[cells, words], one bit per contributing rank; 0 words if the identity determines the contributor
    """

    identity: NDArray[np.int64]
    members: Matrix[np.uint64]


def words_of(task: AnyProgram) -> int:
    """Return how many 64-bit words a bit set of ranks takes; 0 if every chunk has exactly one contribution."""
    custom = custom_of(task)
    if custom is not None:
        return -(-custom.labels.largest // _WORD) if custom.reduces else 0
    single = task.collective.name in (CollectiveName.ALLGATHER, CollectiveName.ALLTOALL)
    return 0 if single else -(-len(task.ranks) // _WORD)


def custom_of(task: AnyProgram) -> CustomCollective | None:
    """Return the custom collective of `task`, cut into as many chunks as `task` has; None for other collectives."""
    custom = task.collective.custom
    return None if custom is None else _in_parts(custom, max(1, task.chunks // custom.chunks))


@lru_cache(maxsize=16)
def _in_parts(custom: CustomCollective, parts: int) -> CustomCollective:
    return custom.in_parts(parts)


def unwritten_values(cells: int, words: int) -> ChunkValues:
    """Return the contents of `cells` cells that were never written."""
    return ChunkValues(np.full(cells, NOTHING, dtype=np.int64), np.zeros((cells, words), dtype=np.uint64))


def initial_inputs(task: AnyProgram, rank: int) -> ChunkValues:
    """Return the initial contents of the input of `rank`, chunk by chunk."""
    custom = custom_of(task)
    if custom is not None:
        return _custom_values(task, [((rank, chunk),) for chunk in range(custom.input_chunks)])
    # In a broadcast, the inputs of the other ranks must not change, either.
    is_broadcast = task.collective.name == CollectiveName.BROADCAST
    chunks = np.arange(task.chunks) if is_broadcast else shape_of(task).initial_chunks(rank)
    return _values(task, chunks, [rank])


def expected_outputs(task: AnyProgram, rank: int) -> ChunkValues:
    """Return the required contents of the output of `rank`, chunk by chunk; empty if the rank needs no result."""
    custom = custom_of(task)
    if custom is not None:
        wanted: list[tuple[Cell, ...]] = [()] * custom.output_chunks
        for each in custom.required_of(rank):
            wanted[each.chunk] = each.sources
        return _custom_values(task, wanted)
    collective = task.collective
    members: range | list[int] = range(len(task.ranks))
    if collective.name == CollectiveName.BROADCAST:
        members = [collective.root or 0]
    return _values(task, shape_of(task).result_chunks(rank), members)


def describe(values: ChunkValues, cell: int, task: AnyProgram) -> str:
    """Return the contents of `cell` as text, such as "nothing" or "chunk 3 of ranks 0, 1"."""
    identity = int(values.identity[cell])
    if identity < 0 or identity >= task.chunks * len(task.ranks):
        return "nothing" if identity == NOTHING else "what was never written" if identity < 0 else "an earlier call's"
    if (custom := custom_of(task)) is not None:
        words = values.members[cell].tolist()
        mask = sum(word << _WORD * place for place, word in enumerate(words)) if words else 1
        inputs = custom.labels.members[identity]
        cells = [inputs[bit] for bit in range(mask.bit_length()) if mask >> bit & 1]
        names = " + ".join(f"i[{chunk}] of rank {rank}" for rank, chunk in cells[:_MAX_NAMED])
        return names + (" + ..." if len(cells) > _MAX_NAMED else "")
    ranks = range(len(task.ranks))
    if task.collective.name == CollectiveName.ALLGATHER:
        members = [identity // (task.chunks // len(ranks))]
    elif task.collective.name == CollectiveName.ALLTOALL:
        members = [identity // task.chunks]
    else:
        words = values.members[cell].tolist()
        members = [rank for rank in ranks if words[rank // _WORD] >> rank % _WORD & 1]
    names = ", ".join(map(str, members[:_MAX_NAMED])) + (", ..." if len(members) > _MAX_NAMED else "")
    return f"chunk {identity} of rank{'s' if len(members) > 1 else ''} {names}"


def _values(task: AnyProgram, identity: NDArray[np.int64], members: range | list[int]) -> ChunkValues:
    """Return one cell per chunk index in `identity`: the sum of the contributions of `members` to this chunk."""
    words = [0] * words_of(task)
    if words:
        for rank in members:
            words[rank // _WORD] |= 1 << rank % _WORD
    row = np.array(words, dtype=np.uint64)
    return ChunkValues(identity.astype(np.int64), np.broadcast_to(row, (len(identity), len(words))))


def _custom_values(task: AnyProgram, sources: Sequence[Sequence[Cell]]) -> ChunkValues:
    """Return one cell per entry of `sources`: the sum of these input chunks, or ANYTHING if there are none."""
    custom = custom_of(task)
    assert custom is not None
    values = unwritten_values(len(sources), words_of(task))
    for cell, added in enumerate(sources):
        values.identity[cell] = custom.labels.family[added[0]] if added else ANYTHING
        for each in added if values.members.shape[1] else ():
            number = custom.labels.member[each]
            values.members[cell, number // _WORD] |= np.uint64(1 << number % _WORD)
    return values


def result_violations(
    task: AnyProgram, layouts: Sequence[Layout], first_cell: Sequence[int], memory: ChunkValues, first_rank: int = 0
) -> list[ProgramViolation]:
    """Return violations for output chunks with wrong contents and, for out-of-place programs, for changed input chunks.

    O(chunks of the checked ranks).

    Args:
        task: The program.
        layouts: Memory layout of each checked rank.
        first_cell: First cell of each checked rank in `memory`.
        memory: Contents after the run.
        first_rank: The first checked rank; the other checked ranks follow it.
    """
    found: list[ProgramViolation] = []
    for rank, layout in enumerate(layouts, first_rank):
        regions = [("result", "o", layout.output_base, expected_outputs(task, rank))]
        if not task.in_place:
            regions.append(("input changed", "i", layout.input_base, initial_inputs(task, rank)))
        for rule, buffer, base, expected in regions:
            first = first_cell[rank - first_rank] + base
            cells = slice(first, first + len(expected.identity))
            held = ChunkValues(memory.identity[cells], memory.members[cells])
            wrong = (held.identity != expected.identity) | (held.members != expected.members).any(axis=1)
            wrong &= expected.identity != ANYTHING
            chunks: list[int] = np.flatnonzero(wrong).tolist()
            for chunk in chunks:
                got, wanted = describe(held, chunk, task), describe(expected, chunk, task)
                violation = ProgramViolation.at(rule, f"{buffer}[{chunk}] holds {got}, must hold {wanted}", rank)
                found.append(replace(violation, chunk=chunk if buffer == "o" else None))
                if len(found) >= MAX_REPORTED:
                    return found
    return found


def collective_of_ranks(program: AnyProgram) -> Collective:
    """Return the collective that `program` executes among its ranks, such as allreduce.

    If switches are processes, `program.collective` is custom, because it also describes the switches.
    """
    custom = program.collective.custom
    if not isinstance(program, Program) or not program.switches or custom is None:
        return program.collective
    return Collective(CollectiveName(custom.name), program.collective.root)


def rank_count(program: AnyProgram) -> int:
    """Return the number of ranks, not counting switch processes."""
    return len(program.ranks) - (len(program.switches) if isinstance(program, Program) else 0)


@lru_cache(maxsize=16)
def switch_collective(collective: Collective, ranks: int, switches: int) -> Collective:
    """Return the custom collective in which `ranks` ranks get the result of `collective` with the help of switches.

    Its processes are the ranks, then the switches. The input and output of each process are the complete vector, in
    place. Raises InvalidInput for an alltoall or an uneven collective. O(ranks^2).
    """
    if collective.name in (CollectiveName.ALLTOALL, CollectiveName.CUSTOM) or collective.name.is_uneven:
        rule = "switches cannot add or multicast in {}"
        raise InvalidInput(rule, str(collective), "choose allreduce, allgather, reduce_scatter, broadcast or reduce")
    chunks = ranks if collective.name in (CollectiveName.ALLGATHER, CollectiveName.REDUCE_SCATTER) else 1
    shape = BufferShape(collective.name, chunks, ranks, in_place=True, root=collective.root)
    required = []
    for rank in range(ranks):
        for chunk in shape.result_chunks(rank).tolist():
            sources: Iterable[int] = range(ranks)
            if collective.name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
                sources = [chunk if collective.name == CollectiveName.ALLGATHER else collective.root or 0]
            required.append(RequiredChunk(rank, chunk, tuple((source, chunk) for source in sources)))
    custom = CustomCollective(collective.name.value, ranks + switches, chunks, chunks, tuple(required))
    return Collective(CollectiveName.CUSTOM, collective.root, custom)


def with_idle_switches(program: Program, switches: tuple[int, ...]) -> Program:
    """Return `program` with idle processes for `switches`, to run it together with programs that use these switches.

    Raises:
        InvalidInput: The program is not in place, uses both input and output, or already has other switches.
    """
    if program.switches == switches:
        return program
    ranks, name = len(program.ranks), program.collective.name
    unused = {CollectiveName.ALLGATHER: "input_chunks", CollectiveName.REDUCE_SCATTER: "output_chunks"}.get(name)
    names_both = unused is not None and any(getattr(body, unused) for body in program.ranks)
    if program.switches or not program.in_place or names_both:
        rule = "{} cannot run next to a program with switches that add: it must be in place, with the same switches"
        raise InvalidInput(rule, program.name, "lower it in place")
    shared = max(program.chunks, 1)
    bodies = tuple(replace(body, input_chunks=shared, output_chunks=shared) for body in program.ranks)
    idle = RankProgram(0, 0, 0, (ThreadBlock(None, None, 0, ()),))
    collective = switch_collective(program.collective, ranks, len(switches))
    return replace(program, collective=collective, ranks=(*bodies, *(idle,) * len(switches)), switches=switches)
