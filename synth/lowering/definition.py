"""What a collective means, chunk by chunk: contents before and after, as sets of contributions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from synth.collective import CollectiveName
from synth.lowering.memory import buffer_chunks
from synth.lowering.program import Program

NOTHING = -1
_WORD = 64


class Values(NamedTuple):
    """What cells hold: each the sum of what some ranks contribute to one chunk of the vector.

    identity: int64[cells], which chunk; NOTHING: never written
    members:  uint64[cells, words], one bit per contributing rank; no words where the identity says whose it is
    """

    identity: NDArray[np.int64]
    members: NDArray[np.uint64]


def words_of(program: Program) -> int:
    """Return how many words a set of contributions takes; 0 where every chunk has one contribution only."""
    single = program.collective.name in (CollectiveName.ALLGATHER, CollectiveName.ALLTOALL)
    return 0 if single else -(-len(program.ranks) // _WORD)


def nothing(cells: int, words: int) -> Values:
    """Return cells that were never written."""
    return Values(np.full(cells, NOTHING, dtype=np.int64), np.zeros((cells, words), dtype=np.uint64))


def initial_inputs(program: Program, rank: int) -> Values:
    """Return what each chunk of the input of `rank` holds."""
    ranks, chunks, name = len(program.ranks), program.chunks, program.collective.name
    count, _ = buffer_chunks(name, chunks, ranks)
    first = 0
    if name == CollectiveName.ALLGATHER:
        first = rank * count
    elif name == CollectiveName.ALLTOALL:
        first = rank * chunks  # every rank sends data of its own
    return _values(program, first + np.arange(count), [rank])


def expected_outputs(program: Program, rank: int) -> Values | None:
    """Return what each chunk of the output of `rank` must hold; None where its output is not defined."""
    ranks, chunks, collective = len(program.ranks), program.chunks, program.collective
    _, count = buffer_chunks(collective.name, chunks, ranks)
    chunk = np.arange(count)
    if collective.name == CollectiveName.REDUCE and rank != collective.root:
        return None
    if collective.name == CollectiveName.ALLTOALL:
        share = chunks // ranks
        sender, within = np.divmod(chunk, share)
        return _values(program, sender * chunks + rank * share + within, [])
    if collective.name == CollectiveName.REDUCE_SCATTER:
        return _values(program, rank * count + chunk, range(ranks))
    if collective.name == CollectiveName.BROADCAST:
        return _values(program, chunk, [collective.root or 0])
    return _values(program, chunk, range(ranks))


def describe(values: Values, cell: int, program: Program) -> str:
    """Return what `cell` of `values` holds, in words, short whatever the number of ranks."""
    identity = int(values.identity[cell])
    if identity == NOTHING:
        return "nothing"
    members = _members(values, cell, program)
    names = ", ".join(map(str, members[:8])) + (", ..." if len(members) > 8 else "")
    return f"chunk {identity} of rank{'s' if len(members) > 1 else ''} {names}"


def _members(values: Values, cell: int, program: Program) -> list[int]:
    identity, ranks = int(values.identity[cell]), len(program.ranks)
    if program.collective.name == CollectiveName.ALLGATHER:
        return [identity // (program.chunks // ranks)]
    if program.collective.name == CollectiveName.ALLTOALL:
        return [identity // program.chunks]
    words = values.members[cell].tolist()
    return [rank for rank in range(ranks) if words[rank // _WORD] >> rank % _WORD & 1]


def _values(program: Program, identity: NDArray[np.int64], members: range | list[int]) -> Values:
    """Return cells of the chunks `identity`, each the sum of what `members` contribute."""
    words = [0] * words_of(program)
    if words:
        for rank in members:
            words[rank // _WORD] |= 1 << rank % _WORD
    row = np.array(words, dtype=np.uint64)
    return Values(identity.astype(np.int64), np.broadcast_to(row, (len(identity), len(words))))
