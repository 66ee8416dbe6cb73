"""Cells: runs of chunks that every transfer of a schedule treats alike, and the rows of a schedule in cells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.schedule.schedule import Schedule, Transfers
from chorale.synth.verify import replay

FEW_CHUNKS = 16
MAX_BOUNDARIES = 2**27
"""Tables of runs take five bytes for each boundary between chunks."""

Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIntervals:
    """Cells of all shards, one shard after the other.

    offsets:   int64[shards + 1]: shard s has the cells `offsets[s]` to `offsets[s + 1] - 1`
    size:      int64 per cell: chunks in it; empty where every cell is one chunk
    at_chunk:  int32[shards, chunks + 1]: how many cells of the shard end before each chunk; None where that is the
               number of the chunk
    """

    offsets: Numbers
    size: Numbers
    at_chunk: NDArray[np.int32] | None

    @staticmethod
    def of(schedule: Schedule) -> ChunkIntervals:
        """Return the runs that the intervals of `schedule` cut; single chunks if there are few, or far too many.

        A shard of thousands of chunks often moves in a handful of intervals. O(rows + shards * chunks).
        """
        shards, chunks, rows = schedule.shard_count, schedule.chunks_per_shard, schedule.transfers
        if chunks <= FEW_CHUNKS or shards * (chunks + 1) > MAX_BOUNDARIES:
            offsets = np.arange(shards + 1, dtype=np.int64) * chunks
            return ChunkIntervals(offsets, np.zeros(0, dtype=np.int64), None)
        begins = np.zeros((shards, chunks + 1), dtype=np.bool_)
        begins[:, [0, chunks]] = True
        if schedule.collective.sizes is not None:
            begins[np.arange(shards), schedule.collective.sizes] = True
        begins[rows.shard, rows.lo] = begins[rows.shard, rows.hi] = True
        at_chunk = np.cumsum(begins, axis=1, dtype=np.int32) - np.int32(1)
        offsets = np.concatenate([[0], np.cumsum(at_chunk[:, -1], dtype=np.int64)])
        shard, first = np.nonzero(begins)
        size = np.diff(first)[np.diff(shard) == 0]
        return ChunkIntervals(offsets, size.astype(np.int64), at_chunk)

    def interval(self, rows: Transfers) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return the first cell of each row within its shard, and the one after its last."""
        if self.at_chunk is None:
            return rows.lo, rows.hi
        return self.at_chunk[rows.shard, rows.lo], self.at_chunk[rows.shard, rows.hi]

    def beyond(self, sizes: tuple[int, ...] | None) -> NDArray[np.bool_]:
        """Return bool per cell: whether its chunks are none of its shard, of which `sizes` says how many it has."""
        outside = np.zeros(int(self.offsets[-1]), dtype=np.bool_)
        for shard, size in enumerate(sizes or ()):
            first = size if self.at_chunk is None else int(self.at_chunk[shard, size])
            outside[self.offsets[shard] + first : self.offsets[shard + 1]] = True
        return outside

    def locate(self, cell: int) -> tuple[int, int]:
        """Return (shard, chunk) of the first chunk of `cell`."""
        shard = int(np.searchsorted(self.offsets, cell, side="right")) - 1
        within = cell - int(self.offsets[shard])
        return shard, within if self.at_chunk is None else int(np.searchsorted(self.at_chunk[shard], within))


ROWS_AT_ONCE = 2**20


def cell_text(cells: ChunkIntervals, begin: int, rank: int, cell: int, what: str) -> str:
    """Return a sentence about `cell`, at a rank unless that is -1."""
    shard, chunk = cells.locate(begin + cell)
    return f"chunk {chunk} of shard {shard} {what}" + (f" at rank {rank}" if rank >= 0 else "")


def row_blocks(schedule: Schedule, cells: ChunkIntervals) -> Iterator[tuple[int, replay.Rows]]:
    """Yield (index of the first row, int32 rows as the kernels take them)."""
    transfers = schedule.transfers
    links = schedule.topology.links
    sources, destinations = schedule.routes.sources(links), schedule.routes.destinations(links)
    for start in range(0, len(transfers), ROWS_AT_ONCE):
        block = transfers.select(slice(start, start + ROWS_AT_ONCE))
        ends = sources[block.route], destinations[block.route]
        columns = (block.step, *ends, block.shard, *cells.interval(block), block.reduce)
        rows = np.empty((len(columns), len(block)), dtype=np.int32)
        for index, column in enumerate(columns):
            rows[index] = column
        yield start, rows
