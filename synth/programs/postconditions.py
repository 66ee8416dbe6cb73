"""Defines what chunks contain before a collective and what they must contain after it, and checks results."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.custom_collective import Cell, CustomCollective
from chorale.synth.kernels.types import Matrix
from chorale.synth.programs.memory import Layout, buffer_chunks
from chorale.synth.programs.program import Message, ProgramViolation

NOTHING = -1
ANYTHING = -(2**62)
"""Identity of an expected chunk that may contain anything."""
_WORD = 64


class AnyRank(Protocol):
    """The thread blocks and the scratch memory of a rank."""

    @property
    def scratch_chunks(self) -> int: ...
    @property
    def blocks(self) -> Sequence[object]: ...


class AnyProgram(Protocol):
    """A program in any form: instructions (`Program`), one-sided operations (`ExecutionPlan`), or a `LibraryCall`.

    one_sided: whether senders write directly to other ranks' memory, so that they never wait for connection buffers
    """

    @property
    def name(self) -> str: ...
    @property
    def target(self) -> str: ...
    @property
    def collective(self) -> Collective: ...
    @property
    def chunks(self) -> int: ...
    @property
    def in_place(self) -> bool: ...
    @property
    def protocol(self) -> str: ...
    @property
    def channels(self) -> int: ...
    @property
    def ranks(self) -> Sequence[AnyRank]: ...
    @property
    def min_bytes(self) -> int: ...
    @property
    def max_bytes(self) -> int: ...
    @property
    def origin(self) -> str: ...
    @property
    def one_sided(self) -> bool: ...
    def peers(self) -> set[tuple[int, int]]: ...
    def messages(self) -> Iterator[Message]: ...


class ChunkValues(NamedTuple):
    """Symbolic contents of cells. Each cell holds the sum of some ranks' contributions to one chunk of the vector.

    identity: int64[cells], index of the chunk; NOTHING if the cell was never written; smaller values mark results that
              were computed from a chunk that was never written
    members:  uint64[cells, words], one bit per contributing rank; 0 words if the identity determines the contributor
    """

    identity: NDArray[np.int64]
    members: Matrix[np.uint64]


def words_of(task: AnyProgram) -> int:
    """Return the number of 64-bit words per set of ranks; 0 if every chunk has exactly one contribution."""
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
    ranks, chunks, name = len(task.ranks), task.chunks, task.collective.name
    count, _ = buffer_chunks(name, chunks, ranks)
    first = 0
    if name == CollectiveName.ALLGATHER:
        first = rank * count
    elif name == CollectiveName.ALLTOALL:
        first = rank * chunks  # every rank sends different data
    return _values(task, first + np.arange(count), [rank])


def expected_outputs(task: AnyProgram, rank: int) -> ChunkValues | None:
    """Return the required contents of the output of `rank`, chunk by chunk; None if any output is allowed."""
    custom = custom_of(task)
    if custom is not None:
        wanted: list[tuple[Cell, ...]] = [()] * custom.output_chunks
        for each in custom.required_of(rank):
            wanted[each.chunk] = each.sources
        return _custom_values(task, wanted)
    ranks, chunks, collective = len(task.ranks), task.chunks, task.collective
    _, count = buffer_chunks(collective.name, chunks, ranks)
    chunk = np.arange(count)
    if collective.name == CollectiveName.REDUCE and rank != collective.root:
        return None
    if collective.name == CollectiveName.ALLTOALL:
        share = chunks // ranks
        sender, within = np.divmod(chunk, share)
        return _values(task, sender * chunks + rank * share + within, [])
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return _values(task, rank * count + chunk, range(ranks))
    if collective.name == CollectiveName.BROADCAST:
        return _values(task, chunk, [collective.root or 0])
    return _values(task, chunk, range(ranks))


def describe(values: ChunkValues, cell: int, task: AnyProgram) -> str:
    """Return a short text that describes the contents of `cell`."""
    identity = int(values.identity[cell])
    if identity < 0 or identity >= task.chunks * len(task.ranks):
        return "nothing" if identity == NOTHING else "what was never written" if identity < 0 else "an earlier call's"
    if (custom := custom_of(task)) is not None:
        words = values.members[cell].tolist()
        mask = sum(word << _WORD * place for place, word in enumerate(words)) if words else 1
        return contribution_names(custom, identity, [bit for bit in range(mask.bit_length()) if mask >> bit & 1])
    members = _members(values, cell, task)
    names = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
    return f"chunk {identity} of rank{'s' if len(members) > 1 else ''} {names}"


def _members(values: ChunkValues, cell: int, task: AnyProgram) -> list[int]:
    identity, ranks = int(values.identity[cell]), len(task.ranks)
    if task.collective.name == CollectiveName.ALLGATHER:
        return [identity // (task.chunks // ranks)]
    if task.collective.name == CollectiveName.ALLTOALL:
        return [identity // task.chunks]
    words = values.members[cell].tolist()
    return [rank for rank in range(ranks) if words[rank // _WORD] >> rank % _WORD & 1]


def _values(task: AnyProgram, identity: NDArray[np.int64], members: range | list[int]) -> ChunkValues:
    """Return cells that hold the chunks `identity`, each as the sum of the contributions of `members`."""
    words = [0] * words_of(task)
    if words:
        for rank in members:
            words[rank // _WORD] |= 1 << rank % _WORD
    row = np.array(words, dtype=np.uint64)
    return ChunkValues(identity.astype(np.int64), np.broadcast_to(row, (len(identity), len(words))))


def _custom_values(task: AnyProgram, sources: Sequence[Sequence[Cell]]) -> ChunkValues:
    """Return cells, each the sum of its `sources` (input chunks); cells without sources may contain anything."""
    custom = custom_of(task)
    assert custom is not None
    values = unwritten_values(len(sources), words_of(task))
    for cell, added in enumerate(sources):
        values.identity[cell] = custom.labels.family[added[0]] if added else ANYTHING
        for each in added if values.members.shape[1] else ():
            number = custom.labels.member[each]
            values.members[cell, number // _WORD] |= np.uint64(1 << number % _WORD)
    return values


def contribution_names(custom: CustomCollective, family: int, members: Sequence[int]) -> str:
    """Return a short text with the names of those input chunks in `family` whose indices are `members`."""
    cells = [custom.labels.members[family][member] for member in members]
    names = " + ".join(f"i[{chunk}] of rank {rank}" for rank, chunk in cells[:_MAX_NAMED])
    return names + (" + ..." if len(cells) > _MAX_NAMED else "")


_MAX_NAMED = 8
MAX_REPORTED = 20


def result_violations(
    task: AnyProgram, layouts: Sequence[Layout], first_cell: Sequence[int], memory: ChunkValues, first_rank: int = 0
) -> list[ProgramViolation]:
    """Return violations for output chunks with wrong contents and, for out-of-place programs, for changed input chunks.

    O(chunks of these ranks).

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
            if expected is None:
                continue
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
