"""The transfers of a schedule as columns: tens of millions of rows must stay cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.unsignedinteger]


@dataclass(frozen=True, slots=True, eq=False)
class Transfers:
    """Columns of equal length; row i moves chunks `lo[i]` to `hi[i] - 1` of shard `shard[i]` over `route[i]`.

    step:   0-based step of a stepped schedule, or depth in the tree of a pipelined one
    route:  index into the schedule's `Routes`; fixes source and destination
    shard:  which shard (by the rank that owns it)
    lo, hi: chunk interval in units of 1 / chunks_per_shard
    reduce: 1 where the destination adds what arrives to what it holds, 0 where it stores it

    Every column has the smallest unsigned type that fits its largest legal value, so that equal schedules
    have equal bytes.
    """

    step: Column
    route: Column
    shard: Column
    lo: Column
    hi: Column
    reduce: Column

    def __len__(self) -> int:
        return len(self.step)

    @property
    def columns(self) -> tuple[Column, ...]:
        return (self.step, self.route, self.shard, self.lo, self.hi, self.reduce)

    def select(self, rows: NDArray[np.integer] | NDArray[np.bool_] | slice) -> Transfers:
        """Return the rows picked by an index array, a mask or a slice."""
        return Transfers(*(column[rows] for column in self.columns))


COLUMN_NAMES = ("step", "route", "shard", "lo", "hi", "reduce")


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """The counts that fix the column types: steps, routes, shards and chunks per shard."""

    steps: int
    routes: int
    shards: int
    chunks_per_shard: int

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        """Return the type of each column, in the order of `COLUMN_NAMES`."""
        largest = (self.steps, self.routes, self.shards, self.chunks_per_shard, self.chunks_per_shard, 1)
        return tuple(np.min_scalar_type(value) for value in largest)

    def pack(self, columns: Sequence[NDArray[np.integer]]) -> Transfers:
        """Return `columns` (in the order of `COLUMN_NAMES`) as Transfers of the canonical types."""
        pairs = zip(columns, self.dtypes, strict=True)
        return Transfers(*(np.ascontiguousarray(column, dtype=dtype) for column, dtype in pairs))
