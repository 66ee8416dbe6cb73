"""Buffers of collectives whose shards have different sizes, and the required result of a program, chunk by chunk.

Shards lie in buffers in the order of their numbers, as MPI lays them out by default: in the input of an alltoallv those
for rank 0 first, in its output those from rank 0. The vector of a program is the longest buffer of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName, custom_collective
from chorale.synth.custom_collective import MAX_CONTRIBUTIONS, CustomCollective, RequiredChunk
from chorale.synth.errors import InvalidInput
from chorale.synth.lowering.vector_layout import VectorLayout
from chorale.synth.programs.memory import BufferShape
from chorale.synth.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class UnevenShape(BufferShape):
    """The buffers of all ranks; chunks of data are numbered shard by shard. sizes: chunks of each shard."""

    sizes: tuple[int, ...] = ()

    @property
    def identities(self) -> int:
        return sum(self.sizes)

    def initial_chunks(self, rank: int) -> slice:
        """Return which chunks of all data `rank` has in its input at the start."""
        if self.collective == CollectiveName.REDUCE_SCATTERV:
            return slice(0, self.identities)
        first, last = (rank, rank + 1) if self.collective == CollectiveName.ALLGATHERV else self._row(rank)
        return slice(sum(self.sizes[:first]), sum(self.sizes[:last]))

    def result_chunks(self, rank: int) -> NDArray[np.int64]:
        """Return which chunks of all data `rank` has in its output at the end, in the order of that buffer."""
        if self.collective == CollectiveName.ALLGATHERV:
            return np.arange(self.identities)
        sizes = np.array(self.sizes, dtype=np.int64)
        first = np.cumsum(sizes) - sizes
        own = (
            slice(rank, rank + 1)
            if self.collective == CollectiveName.REDUCE_SCATTERV
            else slice(rank, None, self.ranks)
        )
        parts = [np.arange(start, start + size) for start, size in zip(first[own], sizes[own], strict=True)]
        return np.concatenate(parts)

    def _row(self, rank: int) -> tuple[int, int]:
        return rank * self.ranks, (rank + 1) * self.ranks


def buffers_of(schedule: Schedule, vector: VectorLayout, in_place: bool) -> tuple[Collective, BufferShape]:
    """Return what a program of `schedule` is for, and its buffers; one of given sizes is a custom one to runtimes."""
    collective, ranks = schedule.collective, schedule.topology.compute_count
    if collective.name.is_uneven:
        shape = uneven_shape(collective, ranks)
        return custom_collective(custom_of_shape(shape)), shape
    chunks = vector.chunks // (ranks if collective.is_alltoall else 1)
    return collective, BufferShape(collective.name, chunks, ranks, in_place, collective.root)


def uneven_shape(collective: Collective, ranks: int) -> UnevenShape:
    """Return the buffers of an uneven collective; InvalidInput where its program would have too many chunks."""
    sizes = collective.sizes or ()
    shape = UnevenShape(collective.name, 1, ranks, False, sizes=sizes)
    sums = ranks if collective.reduces else 1
    copies = ranks if collective.name == CollectiveName.ALLGATHERV else 1
    if shape.identities * sums * copies > MAX_CONTRIBUTIONS:
        rule = f"a program of given sizes must require at most {MAX_CONTRIBUTIONS} chunks of sources"
        raise InvalidInput(rule, f"{shape.identities * sums * copies} of {collective}", "plan it with fewer --chunks")
    return UnevenShape(collective.name, max(*_lengths(shape)), ranks, False, sizes=sizes)


def custom_of_shape(shape: UnevenShape) -> CustomCollective:
    """Return what a program with these buffers must do: every output chunk, and the input chunks that it is made of."""
    held = [shape.initial_chunks(rank) for rank in range(shape.ranks)]
    reduces = shape.collective == CollectiveName.REDUCE_SCATTERV
    starts = np.array([part.start for part in held])
    required: list[RequiredChunk] = []
    for rank in range(shape.ranks):
        result = shape.result_chunks(rank)
        owner = np.searchsorted(starts, result, side="right") - 1 if not reduces else np.zeros(len(result), dtype=int)
        for place, (chunk, source) in enumerate(zip(result.tolist(), owner.tolist(), strict=True)):
            sources = (
                [(peer, chunk) for peer in range(shape.ranks)] if reduces else [(source, chunk - held[source].start)]
            )
            required.append(RequiredChunk(rank, place, tuple(sources)))
    inputs, outputs = _lengths(shape)
    return CustomCollective(shape.collective.value, shape.ranks, inputs, outputs, tuple(required))


def _lengths(shape: UnevenShape) -> tuple[int, int]:
    """Return the chunks of the longest input and the longest output."""
    ranks = range(shape.ranks)
    inputs = max(part.stop - part.start for part in map(shape.initial_chunks, ranks))
    return inputs, max(len(shape.result_chunks(rank)) for rank in ranks)
