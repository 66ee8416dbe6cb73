"""What a collective requires of every shard, and structural checks that need no replay: column types, routes, ranks.

In the general replay every chunk at every rank is the set of ranks whose contribution is in it. It accepts any pattern
of sums, such as the exchanges of recursive doubling, which do not flow along trees. The fast replay of
`chorale.synth.verify.verify` decides first; this one costs N / 64 times as much time and memory.

The fast replay fills tables, for all cells and in any order of rows. They hold the cells of a window of shards, `first`
to `last - 1`; the cells of shard s begin at `offsets[s] - offsets[first]`. Times are stored as step + 1; `NEVER` means
that the event does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.schedule.schedule import COLUMN_NAMES, Schedule, Transfers, shard_count
from chorale.synth.verify.verified import ScheduleViolation

NEVER = 65535
Times = NDArray[np.uint16]
Ranks = NDArray[np.int32]
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]
"""int32[7, rows]: step, src, dst, shard, first cell within the shard, the one after the last, reduce."""


class ActorTables(NamedTuple):
    """Events of each cell of a window, per actor and per switch that acts.

    arrival:    earliest arrival of what is finished;  handed_on: when an actor sent its partial sum
    fed:        when it last got one;  first_fed: when a switch first got one;  inputs: how many a switch gets
    goes_to:    the actor to which a switch hands its sum on;  comes_from: the one from which it has the result
    copies:     how many copies a switch sends
    """

    arrival: Matrix[np.uint16]
    handed_on: Matrix[np.uint16]
    fed: Matrix[np.uint16]
    first_fed: Matrix[np.uint16]
    inputs: Matrix[np.int32]
    goes_to: Matrix[np.int32]
    comes_from: Matrix[np.int32]
    copies: Matrix[np.int32]


def first_missing(
    arrival: Matrix[np.uint16], size: Numbers, ends: Ranks, members: Matrix[np.bool_] | None = None
) -> tuple[int, int, int]:
    """Return (missing chunks, a rank, a cell): what did not arrive where it must (`ends[cell]`, or everywhere if -1).

    size:    chunks per cell of the window; empty where all are one
    members: bool[ranks, cells], the ranks where it must arrive, in place of all
    """
    missing = arrival == NEVER
    if missing.any():
        missing &= members if members is not None else True
        missing &= (ends < 0) | (ends == np.arange(len(arrival))[:, np.newaxis])
    ranks, cells = np.nonzero(missing)
    if not len(cells):
        return 0, -1, -1
    return int(size[cells].sum()) if len(size) else len(cells), int(ranks[-1]), int(cells[-1])


MAX_WORDS = 2**33
MEMORY_BYTES = 2**28

Sets = NDArray[np.uint64]
"""uint64[ranks, cells, words]: one bit per contributing rank; cells of a window of shards, as in `ChunkIntervals`."""


def fits_set_replay(schedule: Schedule) -> bool:
    """Whether `schedule` is small enough for this replay: about 2^33 words of sets are sent (1,024 ranks or so)."""
    lo, hi = ChunkIntervals.of(schedule).interval(schedule.transfers)
    return int((hi.astype(np.int64) - lo).sum()) * _words(schedule) <= MAX_WORDS


def set_replay_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Replay step by step and return every kind of fault (at most 20).

    A copied shard counts as complete from the start. O(N / 64) time per chunk sent.
    """
    conditions = shard_conditions(schedule)
    cells = ChunkIntervals.of(schedule)
    most = MEMORY_BYTES // (8 * schedule.topology.compute_count * _words(schedule))
    violations: list[ScheduleViolation] = []
    first = 0
    while first < schedule.shard_count and len(violations) < 20:
        end = int(np.searchsorted(cells.offsets, cells.offsets[first] + most, side="right")) - 1
        last = max(first + 1, end)
        held = _start(schedule, conditions, cells, first, last)
        for numbers, rows in _steps(schedule, cells, first, last):
            violations += _step_violations(numbers, rows, held)
        violations += _missing(conditions, held, cells, first, last)
        first = last
    return violations[:20]


def _words(schedule: Schedule) -> int:
    return -(-schedule.topology.compute_count // 64)


def _everyone(ranks: int) -> NDArray[np.uint64]:
    """Return uint64[words]: the set of all ranks."""
    members: NDArray[np.uint64] = _singletons(ranks).sum(axis=0, dtype=np.uint64)
    return members


def _singletons(ranks: int) -> NDArray[np.uint64]:
    """Return uint64[ranks, words]: the set of each rank alone."""
    sets = np.zeros((ranks, -(-ranks // 64)), dtype=np.uint64)
    rank = np.arange(ranks)
    sets[rank, rank // 64] = np.uint64(1) << (rank % 64).astype(np.uint64)
    return sets


def _start(schedule: Schedule, terms: ShardConditions, cells: ChunkIntervals, first: int, last: int) -> Sets:
    ranks, begin = schedule.topology.compute_count, cells.offsets[first]
    held = np.zeros((ranks, int(cells.offsets[last] - begin), _words(schedule)), dtype=np.uint64)
    for shard in range(first, last):
        of_shard = slice(cells.offsets[shard] - begin, cells.offsets[shard + 1] - begin)
        if terms.starts[shard] < 0:
            held[:, of_shard] = _singletons(ranks)[:, None]
        else:
            held[terms.starts[shard], of_shard] = _everyone(ranks)
    return held


def _steps(
    schedule: Schedule, cells: ChunkIntervals, first: int, last: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
    """Yield (row numbers, int32[rows, 5] of src, dst, first cell, the one after the last, reduce) step by step."""
    transfers = schedule.transfers
    chosen = np.flatnonzero((transfers.shard >= first) & (transfers.shard < last))
    chosen = chosen[np.argsort(transfers.step[chosen], kind="stable")]
    some = transfers.select(chosen)
    links = schedule.topology.links
    src, dst = schedule.routes.sources(links)[some.route], schedule.routes.destinations(links)[some.route]
    begin = cells.offsets[some.shard] - cells.offsets[first]
    columns = (src, dst, *(begin + cell for cell in cells.interval(some)), some.reduce)
    rows = np.stack([column.astype(np.int32) for column in columns], axis=1)
    bounds = np.flatnonzero(np.diff(some.step.astype(np.int64), prepend=-1, append=-1))
    for low, high in pairwise(bounds.tolist()):
        yield chosen[low:high], rows[low:high]


def _step_violations(numbers: NDArray[np.int64], rows: NDArray[np.int32], held: Sets) -> Iterator[ScheduleViolation]:
    early, hollow, twice = native.replay_step(rows, held)
    if early >= 0:
        yield ScheduleViolation("sent-before-received", f"row {numbers[early]} sends a chunk before it is there")
    if hollow >= 0:
        yield ScheduleViolation("reduced-into-nothing", f"row {numbers[hollow]} adds to a chunk where there is nothing")
    if twice >= 0:
        yield ScheduleViolation("reduced-twice", f"row {numbers[twice]} adds a contribution for the second time")


def _missing(
    terms: ShardConditions, held: Sets, cells: ChunkIntervals, first: int, last: int
) -> Iterator[ScheduleViolation]:
    ranks = len(held)
    ends = np.repeat(terms.ends[first:last], np.diff(cells.offsets[first : last + 1]))
    required = (ends < 0) | (ends == np.arange(ranks)[:, None])
    for rank, cell in np.argwhere(required & (held != _everyone(ranks)).any(axis=2))[:20].tolist():
        text = cell_text(cells, int(cells.offsets[first]), rank, cell, "is missing")
        yield ScheduleViolation("not-delivered", text)


@dataclass(frozen=True, slots=True, eq=False)
class ShardConditions:
    """starts: rank that holds the shard at the start (copies), or -1 where every rank holds a contribution.

    sum_ends: rank where the sum must be complete, or -1 for any one rank (allreduce, where copies follow).
    ends: rank that must hold the shard in the end, or -1 for every rank.
    members: bool[ranks, shards], of collectives with members: ranks that must hold the shard in the end (dispatch) or
        hold a contribution at the start (combine).
    """

    starts: NDArray[np.int32]
    sum_ends: NDArray[np.int32]
    ends: NDArray[np.int32]
    reduces: bool
    copies: bool
    members: NDArray[np.bool_] | None = None


def shard_conditions(schedule: Schedule) -> ShardConditions:
    """Return the demands of the schedule's collective, one entry per shard."""
    ranks = schedule.topology.compute_count
    shards = np.arange(shard_count(schedule.topology, schedule.collective), dtype=np.int32)
    anywhere = np.full(len(shards), -1, dtype=np.int32)
    root = np.full(len(shards), schedule.collective.root or 0, dtype=np.int32)
    name = schedule.collective.name
    if schedule.collective.members is not None:
        return _conditions_of_members(schedule.collective, ranks, anywhere)
    if name in (CollectiveName.ALLGATHER, CollectiveName.ALLGATHERV):
        return ShardConditions(shards, anywhere, anywhere, reduces=False, copies=True)
    if name == CollectiveName.BROADCAST:
        return ShardConditions(root, anywhere, anywhere, reduces=False, copies=True)
    if schedule.collective.is_alltoall:
        return ShardConditions(shards // ranks, anywhere, shards % ranks, reduces=False, copies=True)
    if name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE_SCATTERV):
        return ShardConditions(anywhere, shards, shards, reduces=True, copies=False)
    if name == CollectiveName.REDUCE:
        return ShardConditions(anywhere, root, root, reduces=True, copies=False)
    return ShardConditions(anywhere, anywhere, anywhere, reduces=True, copies=True)


def _conditions_of_members(collective: Collective, ranks: int, anywhere: NDArray[np.int32]) -> ShardConditions:
    members = np.zeros((ranks, len(anywhere)), dtype=np.bool_)
    for shard, (_source, *targets) in enumerate(collective.members or ()):
        members[targets, shard] = True
    sources = np.array([of_shard[0] for of_shard in collective.members or ()], dtype=np.int32)
    if collective.reduces:
        return ShardConditions(anywhere, sources, sources, reduces=True, copies=False, members=members)
    return ShardConditions(sources, anywhere, anywhere, reduces=False, copies=True, members=members)


def structural_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Return what is wrong with the form of `schedule`; replay is only defined where this is empty."""
    violations = list(_route_violations(schedule))
    violations = violations or list(_column_violations(schedule))
    violations = violations or list(_size_violations(schedule))
    return violations or list(_row_violations(schedule))


def _route_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    routes, links = schedule.routes, schedule.topology.links
    lengths = np.diff(routes.offsets)
    if len(routes) and (lengths < 1).any():
        yield ScheduleViolation("route-empty", f"route {int(np.argmin(lengths))} has no links")
        return
    if routes.offsets[0] != 0 or routes.offsets[-1] != len(routes.link_ids):
        yield ScheduleViolation("route-table", "the route table does not cover its link ids")
        return
    if len(routes.link_ids) and not (routes.link_ids.min() >= 0 and routes.link_ids.max() < len(links)):
        yield ScheduleViolation("route-link", f"a route names a link outside 0 to {len(links) - 1}")
        return
    inner = np.ones(len(routes.link_ids), dtype=bool)
    inner[routes.offsets[:-1]] = False
    broken = np.flatnonzero(inner & (links.src[routes.link_ids] != links.dst[np.roll(routes.link_ids, 1)]))
    if len(broken):
        route = int(np.searchsorted(routes.offsets, broken[0], side="right")) - 1
        yield ScheduleViolation(
            "route-broken", f"route {route} has a link that does not start where the one before ends"
        )
    ends = np.concatenate([routes.sources(links), routes.destinations(links)]) if len(routes) else np.zeros(0)
    able = np.isin(ends, list(schedule.topology.abilities))
    if ((ends >= schedule.topology.compute_count) & ~able).any():
        yield ScheduleViolation("route-ends", "a route starts or ends at a switch that neither multicasts nor adds")
    elif able.any() and (schedule.kind != "pipelined" or schedule.barriers):
        yield ScheduleViolation("route-ends", "switches act in schedules that stream, without barriers")


def _size_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    """Yield sizes that do not fit the collective, and chunks that their shards do not have."""
    collective = schedule.collective
    if collective.sizes is None and not collective.name.is_uneven:
        return
    sizes = collective.sizes or ()
    most = schedule.chunks_per_shard
    if not collective.name.is_uneven or len(sizes) != schedule.shard_count or not 0 <= min(sizes) <= max(sizes) <= most:
        message = f"{collective} must have a size of 0 to {most} chunks for each of {schedule.shard_count} shards"
        yield ScheduleViolation("sizes", message)
        return
    ranks = schedule.topology.compute_count
    strange = next((rank for group in collective.members or () for rank in group if not 0 <= rank < ranks), None)
    if strange is not None:
        yield ScheduleViolation("members", f"a shard has the rank {strange}; the network has 0 to {ranks - 1}")
        return
    transfers = schedule.transfers
    beyond = np.flatnonzero(transfers.hi > np.array(sizes, dtype=np.int64)[transfers.shard])
    if len(beyond):
        row = int(beyond[0])
        shard = int(transfers.shard[row])
        message = f"row {row}: chunk {int(transfers.hi[row]) - 1} of shard {shard}, which has {sizes[shard]}"
        yield ScheduleViolation("sizes", message)


def _column_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    bounds, transfers = schedule.bounds, schedule.transfers
    if schedule.steps >= NEVER - 1:
        yield ScheduleViolation("steps", f"{schedule.steps} steps are more than the {NEVER - 2} that can be replayed")
    ends = (0, *schedule.barriers, schedule.steps)
    if schedule.barriers and (schedule.kind != "pipelined" or any(one >= other for one, other in pairwise(ends))):
        yield ScheduleViolation(
            "barriers", f"{len(schedule.barriers)} barriers do not part the {schedule.steps} steps of streams"
        )
    for name, column, dtype in zip(COLUMN_NAMES, transfers.columns, bounds.dtypes, strict=True):
        if column.dtype != dtype:
            yield ScheduleViolation("column-type", f"column {name} has type {column.dtype}, not {dtype}")
    limits = (bounds.steps, bounds.routes, bounds.shards, bounds.chunks_per_shard, bounds.chunks_per_shard + 1, 2)
    for name, column, limit in zip(COLUMN_NAMES, transfers.columns, limits, strict=True):
        if len(column) and int(column.max()) >= limit:
            row = int(np.argmax(column))
            yield ScheduleViolation("column-range", f"row {row}: {name} is {int(column.max())}, not below {limit}")


def _row_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    transfers = schedule.transfers
    empty = np.flatnonzero(transfers.lo >= transfers.hi)
    if len(empty):
        yield ScheduleViolation("interval", f"row {int(empty[0])}: the chunk interval is empty")
    self_sent = np.flatnonzero(schedule.src == schedule.dst)
    if len(self_sent):
        yield ScheduleViolation("self-send", f"row {int(self_sent[0])}: a rank sends to itself")


def kind_violations(schedule: Schedule, conditions: ShardConditions) -> Iterator[ScheduleViolation]:
    """Yield sums in a collective that only copies, and copies in one that only adds."""
    reduces = schedule.transfers.reduce
    if not conditions.reduces and reduces.any():
        yield ScheduleViolation(
            "unexpected-reduce", f"row {int(np.argmax(reduces))} reduces, but {schedule.collective} does not"
        )
    if not conditions.copies and len(reduces) and not reduces.all():
        yield ScheduleViolation(
            "unexpected-copy", f"row {int(np.argmin(reduces))} overwrites a partial sum of {schedule.collective}"
        )


FEW_CHUNKS = 16
SPARSE = 32
"""Chunks for each row above which the ends of runs are sorted, instead of a table of all chunks (five bytes each)."""


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIntervals:
    """Cells of all shards, one shard after the other.

    offsets:   int64[shards + 1]: shard s has the cells `offsets[s]` to `offsets[s + 1] - 1`
    size:      int64 per cell: chunks in it; empty where every cell is one chunk
    at_chunk:  int32[shards, chunks + 1]: how many cells of the shard end before each chunk; None where that is the
               number of the chunk, or found in `ends`
    ends:      int64, ascending: shard * (chunks + 1) + chunk of the ends of all cells, where chunks are far more than
               rows; else None
    """

    offsets: Numbers
    size: Numbers
    at_chunk: NDArray[np.int32] | None = None
    ends: Numbers | None = None
    chunks: int = 0

    @staticmethod
    def of(schedule: Schedule) -> ChunkIntervals:
        """Return the runs that the intervals of `schedule` cut; single chunks if there are few, or far too many.

        A shard of thousands of chunks often moves in a handful of intervals. O(rows log rows), or O(rows + shards *
        chunks) where chunks are not many more than rows.
        """
        shards, chunks, rows = schedule.shard_count, schedule.chunks_per_shard, schedule.transfers
        if chunks <= FEW_CHUNKS:
            offsets = np.arange(shards + 1, dtype=np.int64) * chunks
            return ChunkIntervals(offsets, np.zeros(0, dtype=np.int64))
        if shards * (chunks + 1) > SPARSE * (len(rows) + shards):
            return ChunkIntervals._sparse(schedule)
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

    @staticmethod
    def _sparse(schedule: Schedule) -> ChunkIntervals:
        shards, chunks, rows = schedule.shard_count, schedule.chunks_per_shard, schedule.transfers
        first = np.arange(shards, dtype=np.int64) * (chunks + 1)
        of_rows = first[rows.shard]
        sizes = [] if schedule.collective.sizes is None else [first + np.array(schedule.collective.sizes)]
        ends = np.unique(np.concatenate([first, first + chunks, of_rows + rows.lo, of_rows + rows.hi, *sizes]))
        shard = np.searchsorted(first, ends, side="right") - 1
        offsets = np.searchsorted(ends, np.append(first, shards * (chunks + 1))) - np.arange(shards + 1)
        return ChunkIntervals(offsets, np.diff(ends)[np.diff(shard) == 0], ends=ends, chunks=chunks)

    def interval(self, rows: Transfers) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return the first cell of each row within its shard, and the one after its last."""
        return self._cell(rows.shard, rows.lo), self._cell(rows.shard, rows.hi)

    def _cell(self, shard: NDArray[np.integer], chunk: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return how many cells of each shard end before, or at, the start of each chunk."""
        if self.ends is not None:
            shard = shard.astype(np.int64)
            ends_before: NDArray[np.int64] = np.searchsorted(self.ends, shard * (self.chunks + 1) + chunk)
            found: NDArray[np.int64] = ends_before - self.offsets[shard] - shard
            return found
        return chunk if self.at_chunk is None else self.at_chunk[shard, chunk]

    def beyond(self, sizes: tuple[int, ...] | None) -> NDArray[np.bool_]:
        """Return bool per cell: whether its chunks are none of its shard, of which `sizes` says how many it has."""
        outside = np.zeros(int(self.offsets[-1]), dtype=np.bool_)
        for shard, size in enumerate(sizes or ()):
            first = int(self._cell(np.array([shard]), np.array([size]))[0])
            outside[self.offsets[shard] + first : self.offsets[shard + 1]] = True
        return outside

    def locate(self, cell: int) -> tuple[int, int]:
        """Return (shard, chunk) of the first chunk of `cell`."""
        shard = int(np.searchsorted(self.offsets, cell, side="right")) - 1
        within = cell - int(self.offsets[shard])
        if self.ends is not None:
            return shard, int(self.ends[cell + shard]) - shard * (self.chunks + 1)
        return shard, within if self.at_chunk is None else int(np.searchsorted(self.at_chunk[shard], within))


ROWS_AT_ONCE = 2**20


def cell_text(cells: ChunkIntervals, begin: int, rank: int, cell: int, what: str) -> str:
    """Return a sentence about `cell`, at a rank unless that is -1."""
    shard, chunk = cells.locate(begin + cell)
    return f"chunk {chunk} of shard {shard} {what}" + (f" at rank {rank}" if rank >= 0 else "")


def row_blocks(schedule: Schedule, cells: ChunkIntervals) -> Iterator[tuple[int, Rows]]:
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
