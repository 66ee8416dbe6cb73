"""Defines element types, and test data: integers that are exact in every type and reveal misplaced elements."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName, CustomCollective
from chorale.synth.errors import InvalidInput, unknown_name

Vector = NDArray[Any]

EXACT_LIMIT = 2**24
"""Integers up to this limit are exact in float32. Sums over all ranks stay below it."""

MAX_RANKS = 2048

UNTOUCHED = -1
"""Initial value of outputs and scratch memory. No input and no sum has this value."""


@dataclass(frozen=True, slots=True)
class DataPattern:
    """Generates test data: rank r's value at position x of the vector is base(x) + weight(r) * slope(x).

    No value and no sum over ranks exceeds `exact_limit`. This holds for up to MAX_RANKS ranks or, if the element type
    is small, for up to `ElementType.max_ranks`.

    base and slope are hashes of (x, run); weights are distinct random numbers. So data from a wrong position, rank or
    run are detected. The sum over ranks has a closed form, so a rank can check its result in O(elements).
    """

    ranks: int
    run: int
    seed: int
    exact_limit: int = EXACT_LIMIT

    @property
    def offset(self) -> int:
        """Return the number that is added to positions before they are hashed. It depends on the run and the seed."""
        return (self.run * 0x632BE5AB + self.seed * 0x2545F491) & 0xFFFFFFFF

    @property
    def bases(self) -> int:
        """Return the upper limit of base(x): base(x) is at least 0 and below this number."""
        return self.exact_limit // self.ranks // 2

    @property
    def slopes(self) -> int:
        """Return the upper limit of slope(x): slope(x) is at least 1 and below this number."""
        return max(1, self.bases // self._weight_limit())

    def weights(self) -> NDArray[np.int64]:
        random = np.random.default_rng([self.seed, self.run])
        return random.permutation(self._weight_limit())[: self.ranks].astype(np.int64) + 1

    def contribution(self, rank: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the contribution of `rank` at positions start to stop - 1."""
        base, slope = self._base_and_slope(start, stop)
        return base + int(self.weights()[rank]) * slope

    def total(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sum over all ranks at positions start to stop - 1."""
        base, slope = self._base_and_slope(start, stop)
        return self.ranks * base + int(self.weights().sum()) * slope

    def _weight_limit(self) -> int:
        return max(2 * self.ranks, 16) if self.exact_limit == EXACT_LIMIT else self.ranks

    def _base_and_slope(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        hashed = np.arange(start, stop, dtype=np.uint64).astype(np.uint32) + np.uint32(self.offset)
        hashed *= np.uint32(0x9E3779B1)
        hashed ^= hashed >> np.uint32(15)
        hashed *= np.uint32(0x85EBCA77)
        hashed ^= hashed >> np.uint32(13)
        base = (hashed % np.uint32(self.bases)).astype(np.int64)
        slope = ((hashed >> np.uint32(11)) % np.uint32(self.slopes)).astype(np.int64)
        return base, np.maximum(slope, 1)


def input_data(collective: Collective, pattern: DataPattern, rank: int, elements: int) -> NDArray[np.int64]:
    """Return `rank`'s input for a vector that has `elements` elements in total."""
    if collective.name is CollectiveName.ALLGATHER:
        return pattern.contribution(rank, *_shard(rank, elements, pattern.ranks))
    return pattern.contribution(rank, 0, elements)


def expected_output(collective: Collective, pattern: DataPattern, rank: int, elements: int) -> NDArray[np.int64] | None:
    """Return the output that `rank` must have at the end, or None if the collective does not define it.

    See `required_pieces` for custom collectives.
    """
    ranks = range(pattern.ranks)
    shard = _shard(rank, elements, pattern.ranks)
    match collective.name:
        case CollectiveName.ALLREDUCE:
            return pattern.total(0, elements)
        case CollectiveName.REDUCE:
            return pattern.total(0, elements) if rank == collective.root else None
        case CollectiveName.REDUCE_SCATTER:
            return pattern.total(*shard)
        case CollectiveName.BROADCAST:
            return pattern.contribution(collective.root or 0, 0, elements)
        case CollectiveName.ALLGATHER:
            return np.concatenate(
                [pattern.contribution(peer, *_shard(peer, elements, pattern.ranks)) for peer in ranks]
            )
        case CollectiveName.ALLTOALL:
            return np.concatenate([pattern.contribution(peer, *shard) for peer in ranks])
        case _:  # collectives with given sizes are custom collectives in programs
            raise InvalidInput("only some chunks of a custom collective are required", "", "use required_pieces")


def required_pieces(
    custom: CustomCollective, pattern: DataPattern, rank: int, elements: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (first element, values) for each required part of the output of `rank` after a custom collective."""
    length = elements // custom.chunks
    for each in custom.required_of(rank):
        summands = [
            pattern.contribution(source, chunk * length, (chunk + 1) * length) for source, chunk in each.sources
        ]
        yield each.chunk * length, np.sum(summands, axis=0, dtype=np.int64)


def _shard(rank: int, elements: int, ranks: int) -> tuple[int, int]:
    length = elements // ranks
    return rank * length, (rank + 1) * length


@dataclass(frozen=True, slots=True)
class ElementType:
    """An element type, and limits for test data of this type.

    dtype:       NumPy type
    exact_limit: integers up to this are represented exactly; sums over all ranks stay below it
    max_ranks:   maximum number of ranks at which values up to `exact_limit` still distinguish positions and ranks
    """

    dtype: np.dtype[Any]
    exact_limit: int
    max_ranks: int


ELEMENT_TYPES: Mapping[str, ElementType] = {
    "float32": ElementType(np.dtype(np.float32), EXACT_LIMIT, MAX_RANKS),
    "float64": ElementType(np.dtype(np.float64), EXACT_LIMIT, MAX_RANKS),
    "int32": ElementType(np.dtype(np.int32), EXACT_LIMIT, MAX_RANKS),
    "int64": ElementType(np.dtype(np.int64), EXACT_LIMIT, MAX_RANKS),
    "float16": ElementType(np.dtype(np.float16), 2**11, 32),
    "bfloat16": ElementType(np.dtype(ml_dtypes.bfloat16), 2**8, 16),
}


def element_bytes(name: str) -> int:
    """Return the size in bytes of an element of type `name`. Raises InvalidInput for an unknown type."""
    if name not in ELEMENT_TYPES:
        raise unknown_name("element type", name, ELEMENT_TYPES)
    return ELEMENT_TYPES[name].dtype.itemsize
