"""Makes traffic matrices, which say how much each rank sends to each other rank, and divides amounts into chunks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import MAX_CHUNKS

Amounts = NDArray[np.int64]

MAX_AMOUNT = 2**40
MAX_RANKS = 1024
ZIPF_UNITS = 1024
MAX_EXPONENT = 8
MAX_PAIR_CHUNKS = 4096
MAX_TOTAL_CHUNKS = 2**18


@dataclass(frozen=True, slots=True, eq=False)
class TrafficMatrix:
    """Amounts of data that ranks send to each other.

    amounts: int64[ranks, ranks], amounts sent from the row's rank to the column's rank, in bytes or any other unit.
             Data on the diagonal stay at their rank: they use no link, but are copied from input to output.
    """

    name: str
    amounts: Amounts

    @property
    def ranks(self) -> int:
        return len(self.amounts)

    @property
    def sent(self) -> Amounts:
        """The amounts that are sent over links: those in `amounts`, but with a zero diagonal."""
        return np.where(np.eye(self.ranks, dtype=np.bool_), 0, self.amounts)

    @property
    def mean(self) -> Fraction:
        """The average amount between two different ranks."""
        return Fraction(int(self.sent.sum()), self.ranks * (self.ranks - 1))

    def transposed(self) -> TrafficMatrix:
        """Return the traffic in the opposite direction. If this is a dispatch to experts, the result is the combine."""
        return TrafficMatrix(f"transpose of {self.name}", np.ascontiguousarray(self.amounts.T))


def as_array(numbers: Any) -> NDArray[Any]:
    """Convert `numbers` (an array, a torch tensor on any device, or a list of rows) to an array; empty for others."""
    with suppress(TypeError, ValueError, RuntimeError):  # for example rows of different lengths
        return np.asarray(numbers.detach().cpu() if hasattr(numbers, "detach") else numbers)
    return np.zeros(0)


def traffic_matrix(name: str, rows: Sequence[Sequence[int]] | NDArray[np.integer]) -> TrafficMatrix:
    """Return the traffic matrix with these `rows`.

    Raises:
        InvalidInput: unless the matrix is square and contains only whole numbers from 0 to 2^40 (also as floats).
    """
    table = as_array(rows)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or len(table) < 2:
        rule = "a traffic matrix must have a row and a column for each of at least 2 ranks"
        raise InvalidInput(rule, f"shape {'x'.join(map(str, table.shape)) or 'none'}", "write N rows of N numbers")
    if table.dtype.kind == "f" and bool(np.isfinite(table).all() and (table == np.rint(table)).all()):
        table = np.clip(table.astype(np.float64), -(2**62), 2**62).astype(np.int64)  # the range is checked below
    if table.dtype.kind not in "iu" and {type(amount) for amount in table.flat} != {int}:  # int: beyond 64 bits
        rule = "the amounts of a traffic matrix must be whole numbers"
        raise InvalidInput(rule, f"{table.dtype.name} in {name}", "write bytes, or weights times 1000")
    if int(table.min()) < 0 or int(table.max()) > MAX_AMOUNT:
        wrong = int(table.min()) if int(table.min()) < 0 else int(table.max())
        raise InvalidInput("the amounts of a traffic matrix must be 0 to 2^40", wrong, "use a larger unit")
    return TrafficMatrix(name, table.astype(np.int64, order="C"))


def require_traffic(matrix: TrafficMatrix) -> None:
    """Raise InvalidInput if no rank sends anything to another rank."""
    if not matrix.sent.any():
        raise InvalidInput("the traffic matrix sends nothing: {}", matrix.name, "enter an amount for some pair")


def require_ranks(matrix: TrafficMatrix, ranks: int, spec: str) -> None:
    """Raise InvalidInput unless `matrix` has the same number of ranks as the network `spec`."""
    if matrix.ranks != ranks:
        rule = f"{{}}, but {spec} has {ranks} ranks"
        raise InvalidInput(
            rule, f"{matrix.name} has {matrix.ranks} rows", "give a matrix with a row for each rank, or another network"
        )


def zipf_matrix(ranks: int, exponent: float, seed: int) -> TrafficMatrix:
    """Return traffic to one expert per rank; the p-th most popular expert gets data in proportion to 1 / p^exponent.

    `seed` determines which ranks are popular. Every rank sends 1024 units to the most popular expert and at least 1
    unit to every other expert. With exponent 0, all amounts are equal.

    >>> zipf_matrix(4, 1.0, 0).amounts[0].tolist()
    [341, 1024, 512, 256]
    """
    if not 0 <= exponent <= MAX_EXPONENT:
        raise InvalidInput(f"the exponent of zipf must be 0 to {MAX_EXPONENT}", exponent, "use zipf:1.2")
    if not 2 <= ranks <= MAX_RANKS:
        raise InvalidInput(f"sizes per pair are for 2 to {MAX_RANKS} ranks", ranks, "choose a smaller network")
    position = np.random.default_rng(seed).permutation(ranks) + 1
    popularity = np.maximum(1, np.rint(ZIPF_UNITS / position.astype(np.float64) ** exponent)).astype(np.int64)
    name = f"zipf:{exponent:g} with seed {seed}"
    return TrafficMatrix(name, np.ascontiguousarray(np.broadcast_to(popularity, (ranks, ranks))))


@dataclass(frozen=True, slots=True, eq=False)
class ChunkCounts:
    """Numbers of chunks between ranks: `counts`, int64[ranks, ranks]. A chunk is `chunk` units of the matrix."""

    counts: Amounts
    chunk: Fraction


def chunk_counts(matrix: TrafficMatrix, largest: int | None = None) -> ChunkCounts:
    """Divide the matrix into equal chunks: `largest` chunks for the largest amount, proportionally fewer for others.

    By default, all amounts are whole numbers of chunks if this takes at most 4096 chunks per pair and 2^18 in total.
    Otherwise, there are as many chunks as these limits allow, and some chunks are padded.

    Raises:
        InvalidInput: if `largest` is outside 1 to 4096, or more than 2^18 chunks would be needed.
    """
    most = int(matrix.amounts.max())
    if largest is None:
        common = int(np.gcd.reduce(matrix.amounts, axis=None))
        whole = ChunkCounts(matrix.amounts // common, Fraction(common))
        if int(whole.counts.max()) <= MAX_PAIR_CHUNKS and int(whole.counts.sum()) <= MAX_TOTAL_CHUNKS:
            return whole

        def total(number: int) -> int:
            return int((-(-matrix.amounts * number // most)).sum())

        largest = max(1, bisect_right(range(1, MAX_PAIR_CHUNKS + 1), MAX_TOTAL_CHUNKS, key=total))
    if not 1 <= largest <= MAX_PAIR_CHUNKS:
        raise InvalidInput(f"chunks of the largest pair must be 1 to {MAX_PAIR_CHUNKS}", largest, "choose fewer")
    counts = -(-matrix.amounts * largest // most)
    if int(counts.sum()) > MAX_TOTAL_CHUNKS:
        rule = f"a schedule of given sizes must have at most {MAX_TOTAL_CHUNKS} chunks in all"
        raise InvalidInput(rule, f"{int(counts.sum())} with {largest} for the largest pair", "use fewer --chunks")
    return ChunkCounts(counts, Fraction(most, largest))


def exact_counts(matrix: TrafficMatrix) -> ChunkCounts:
    """Divide the amounts into chunks of their greatest common divisor, or larger chunks if there would be too many."""
    common = int(np.gcd.reduce(matrix.amounts, axis=None))
    if int(matrix.amounts.max()) // common <= MAX_CHUNKS:
        return ChunkCounts(matrix.amounts // common, Fraction(common))
    most = int(matrix.amounts.max())
    counts = -(-(matrix.amounts.astype(object) * MAX_CHUNKS) // most)
    return ChunkCounts(counts.astype(np.int64), Fraction(most, MAX_CHUNKS))


def parts_of_chunks(chunks: ChunkCounts, parts: int) -> ChunkCounts | None:
    """Divide every chunk into `parts`; return the new counts, or None if there would be too many chunks."""
    counts = chunks.counts * parts
    if int(counts.max()) > MAX_PAIR_CHUNKS or int(counts.sum()) > MAX_TOTAL_CHUNKS:
        return None
    return ChunkCounts(counts, chunks.chunk / parts)
