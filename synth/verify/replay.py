"""Checks a schedule's tables, computes what its collective requires of every shard, and defines the general replay.

The general replay tracks, for every chunk at every rank, the set of ranks that have contributed to it. It accepts any
pattern of sums, for example the exchanges of recursive doubling, which do not follow trees. It takes N / 64 times as
much time and memory as the fast replay in `chorale.synth.verify.verify`, so it only runs if the fast replay finds
faults. Both replays process one window of shards, `first` to `last - 1`, at a time. Their tables have one column per
cell; a cell is a range of chunks that no transfer splits. The cells of shard s begin in column `offsets[s] -
offsets[first]`. The fast replay stores times as step + 1; `NEVER` means that an event does not happen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.schedule.schedule import COLUMN_NAMES, Schedule, Transfers
from chorale.synth.verify.verified import ScheduleViolation

NEVER = 65535
FEW_CHUNKS = 16
ROWS_AT_ONCE = 2**20
MAX_WORDS = 2**33
MEMORY_BYTES = 2**28
Ranks = NDArray[np.int32]
Numbers = NDArray[np.int64]
Rows = NDArray[np.int32]
"""int32[7, rows]: step, src, dst, shard, first cell within the shard, last cell + 1, reduce."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardConditions:
    """The initial and final conditions of each shard, as int32 arrays with one entry per shard.

    starts:   rank that holds the shard initially, or -1 if every rank holds a contribution to its sum
    sum_ends: rank at which the sum must be complete, or -1 for any rank (allreduce, which copies the sum later)
    ends:     rank that must hold the shard in the end, or -1 for every rank
    reduces, copies: whether the collective adds up data, and whether it copies data
    members:  bool[ranks, shards]: whether the rank must hold the shard in the end (dispatch) or holds a contribution
              initially (combine); None for collectives without members
    """

    starts: Ranks
    sum_ends: Ranks
    ends: Ranks
    reduces: bool
    copies: bool
    members: NDArray[np.bool_] | None = None


def shard_conditions(schedule: Schedule) -> ShardConditions:
    """Return the initial and final conditions that the schedule's collective sets for each shard."""
    ranks, collective = schedule.topology.compute_count, schedule.collective
    shards = np.arange(schedule.shard_count, dtype=np.int32)
    anywhere = np.full(len(shards), -1, dtype=np.int32)
    root = np.full(len(shards), collective.root or 0, dtype=np.int32)
    if collective.members is not None:
        members = np.zeros((ranks, len(shards)), dtype=np.bool_)
        for shard, (_source, *targets) in enumerate(collective.members):
            members[targets, shard] = True
        sources = np.array([of_shard[0] for of_shard in collective.members], dtype=np.int32)
        if collective.reduces:
            return ShardConditions(anywhere, sources, sources, reduces=True, copies=False, members=members)
        return ShardConditions(sources, anywhere, anywhere, reduces=False, copies=True, members=members)
    match collective.name:
        case CollectiveName.ALLGATHER | CollectiveName.ALLGATHERV:
            return ShardConditions(shards, anywhere, anywhere, reduces=False, copies=True)
        case CollectiveName.BROADCAST:
            return ShardConditions(root, anywhere, anywhere, reduces=False, copies=True)
        case CollectiveName.ALLTOALL | CollectiveName.ALLTOALLV:
            return ShardConditions(shards // ranks, anywhere, shards % ranks, reduces=False, copies=True)
        case CollectiveName.REDUCE_SCATTER | CollectiveName.REDUCE_SCATTERV:
            return ShardConditions(anywhere, shards, shards, reduces=True, copies=False)
        case CollectiveName.REDUCE:
            return ShardConditions(anywhere, root, root, reduces=True, copies=False)
    return ShardConditions(anywhere, anywhere, anywhere, reduces=True, copies=True)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkIntervals:
    """The cells of all shards, ordered by shard. A cell is a range of chunks that no transfer splits.

    Cells save work, because shards of thousands of chunks are often sent in a handful of intervals. If shards have few
    chunks, every chunk is a cell.

    offsets: int64[shards + 1]: shard s has the cells `offsets[s]` to `offsets[s + 1] - 1`
    chunks:  chunks per shard
    size:    int64 per cell: number of chunks in the cell; empty if every cell is one chunk
    ends:    int64, ascending: all cell boundaries, as shard * (chunks + 1) + chunk; None if every cell is one chunk
    """

    offsets: Numbers
    chunks: int
    size: Numbers
    ends: Numbers | None = None

    @staticmethod
    def of(schedule: Schedule) -> ChunkIntervals:
        """Return the cells of `schedule`. O(rows log rows)."""
        shards, chunks, rows = schedule.shard_count, schedule.chunks_per_shard, schedule.transfers
        if chunks <= FEW_CHUNKS:
            return ChunkIntervals(np.arange(shards + 1, dtype=np.int64) * chunks, chunks, np.zeros(0, dtype=np.int64))
        first = np.arange(shards, dtype=np.int64) * (chunks + 1)
        of_rows = first[rows.shard]
        sizes = [] if schedule.collective.sizes is None else [first + np.array(schedule.collective.sizes)]
        ends = np.unique(np.concatenate([first, first + chunks, of_rows + rows.lo, of_rows + rows.hi, *sizes]))
        shard = np.searchsorted(first, ends, side="right") - 1
        offsets = np.searchsorted(ends, np.append(first, shards * (chunks + 1))) - np.arange(shards + 1)
        return ChunkIntervals(offsets, chunks, np.diff(ends)[np.diff(shard) == 0], ends)

    def interval(self, rows: Transfers) -> tuple[NDArray[np.integer], NDArray[np.integer]]:
        """Return (first cell, last cell + 1) of each row, counted within the row's shard."""
        return self._cell(rows.shard, rows.lo), self._cell(rows.shard, rows.hi)

    def _cell(self, shard: NDArray[np.integer], chunk: NDArray[np.integer]) -> NDArray[np.integer]:
        """Return the number of cells of `shard[i]` before `chunk[i]`, which must be at a cell boundary."""
        if self.ends is None:
            return chunk
        shard = shard.astype(np.int64)
        ends_before: Numbers = np.searchsorted(self.ends, shard * (self.chunks + 1) + chunk)
        found: Numbers = ends_before - self.offsets[shard] - shard
        return found

    def beyond(self, sizes: tuple[int, ...] | None) -> NDArray[np.bool_]:
        """Return, for each cell, whether it is beyond the end of its shard. Shard s has `sizes[s]` chunks."""
        outside = np.zeros(int(self.offsets[-1]), dtype=np.bool_)
        for shard, size in enumerate(sizes or ()):
            first = int(self._cell(np.array([shard]), np.array([size]))[0])
            outside[self.offsets[shard] + first : self.offsets[shard + 1]] = True
        return outside

    def text(self, cell: int, rank: int, what: str) -> str:
        """Return a message: the first chunk of `cell`, then the phrase `what`, then `rank` unless `rank` is -1."""
        shard = int(np.searchsorted(self.offsets, cell, side="right")) - 1
        chunk = cell - int(self.offsets[shard])
        if self.ends is not None:
            chunk = int(self.ends[cell + shard]) - shard * (self.chunks + 1)
        return f"chunk {chunk} of shard {shard} {what}" + (f" at rank {rank}" if rank >= 0 else "")

    def window(self, first: int, most_cells: int) -> int:
        """Return the end of the longest range of shards from `first` with up to `most_cells` cells (or one shard)."""
        end = int(np.searchsorted(self.offsets, self.offsets[first] + most_cells, side="right")) - 1
        return max(first + 1, end)


class ActorTables(NamedTuple):
    """Times (step + 1) and event counts for each cell in a window of shards.

    An actor is a rank or a switch that reduces or multicasts data. The first three tables have a row per actor, the
    others a row per such switch.
    arrival:    earliest time at which the actor has the final data
    handed_on:  time at which the actor sends its partial sum
    fed:        latest time at which the actor receives a partial sum
    first_fed:  earliest time at which the switch receives a partial sum
    inputs:     number of partial sums that the switch receives
    goes_to:    actor to which the switch sends its sum
    comes_from: actor from which the switch receives the final data
    copies:     number of copies that the switch sends
    """

    arrival: Matrix[np.uint16]
    handed_on: Matrix[np.uint16]
    fed: Matrix[np.uint16]
    first_fed: Matrix[np.uint16]
    inputs: Matrix[np.int32]
    goes_to: Matrix[np.int32]
    comes_from: Matrix[np.int32]
    copies: Matrix[np.int32]


def row_blocks(schedule: Schedule, cells: ChunkIntervals) -> Iterator[tuple[int, Rows]]:
    """Yield the transfers of `schedule` in blocks: (index of the first row, int32 table in the format of `Rows`)."""
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


def fits_set_replay(schedule: Schedule) -> bool:
    """Return whether the general replay of `schedule` takes at most 2^33 operations on 64-bit words."""
    lo, hi = ChunkIntervals.of(schedule).interval(schedule.transfers)
    words = -(-schedule.topology.compute_count // 64)
    return int((hi.astype(np.int64) - lo).sum()) * words <= MAX_WORDS


def set_replay_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Replay `schedule` step by step with the set of ranks that contributed to each chunk; return up to 20 violations.

    Sets are uint64[ranks, cells, words], one bit per contributing rank. If the collective only copies data, a chunk's
    set at its initial rank counts as complete. O(N / 64) time per chunk sent.
    """
    conditions, cells = shard_conditions(schedule), ChunkIntervals.of(schedule)
    transfers, links, ranks = schedule.transfers, schedule.topology.links, schedule.topology.compute_count
    sources, destinations = schedule.routes.sources(links), schedule.routes.destinations(links)
    rank = np.arange(ranks)
    alone = np.zeros((ranks, -(-ranks // 64)), dtype=np.uint64)
    alone[rank, rank // 64] = np.uint64(1) << (rank % 64).astype(np.uint64)
    everyone = alone.sum(axis=0, dtype=np.uint64)
    violations: list[ScheduleViolation] = []
    first = 0
    while first < schedule.shard_count and len(violations) < 20:
        last, begin = cells.window(first, MEMORY_BYTES // alone.nbytes), int(cells.offsets[first])
        held = np.zeros((ranks, int(cells.offsets[last]) - begin, alone.shape[1]), dtype=np.uint64)
        for shard in range(first, last):
            of_shard = slice(cells.offsets[shard] - begin, cells.offsets[shard + 1] - begin)
            if conditions.starts[shard] < 0:
                held[:, of_shard] = alone[:, None]
            else:
                held[conditions.starts[shard], of_shard] = everyone
        chosen = np.flatnonzero((transfers.shard >= first) & (transfers.shard < last))
        chosen = chosen[np.argsort(transfers.step[chosen], kind="stable")]
        some = transfers.select(chosen)
        shift = cells.offsets[some.shard] - begin
        ends = sources[some.route], destinations[some.route]
        columns = (*ends, *(shift + cell for cell in cells.interval(some)), some.reduce)
        rows = np.stack([column.astype(np.int32) for column in columns], axis=1)
        steps = np.flatnonzero(np.diff(some.step.astype(np.int64), prepend=-1, append=-1))
        for low, high in pairwise(steps.tolist()):
            early, hollow, twice = native.replay_step(rows[low:high], held)
            for row, rule, text in (
                (early, "sent-before-received", "sends a chunk before it is there"),
                (hollow, "reduced-into-nothing", "adds to a chunk that is not there"),
                (twice, "reduced-twice", "adds a contribution for the second time"),
            ):
                if row >= 0:
                    violations.append(ScheduleViolation(rule, f"row {chosen[low + row]} {text}"))
        end = np.repeat(conditions.ends[first:last], np.diff(cells.offsets[first : last + 1]))
        missing = ((end < 0) | (end == rank[:, None])) & (held != everyone).any(axis=2)
        for at, cell in np.argwhere(missing)[:20].tolist():
            violations.append(ScheduleViolation("not-delivered", cells.text(begin + cell, at, "is missing")))
        first = last
    return violations[:20]


def structural_violations(schedule: Schedule) -> list[ScheduleViolation]:
    """Return faults in the tables of `schedule`, such as broken routes or values out of range.

    Only a schedule without such faults can be replayed.
    """
    for check in (_route_violations, _column_violations, _size_violations, _row_violations):
        if violations := list(check(schedule)):
            return violations
    return []


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
        text = f"route {route} has a link that does not start where the one before ends"
        yield ScheduleViolation("route-broken", text)
    ends = np.concatenate([routes.sources(links), routes.destinations(links)]) if len(routes) else np.zeros(0)
    able = np.isin(ends, list(schedule.topology.abilities))
    if ((ends >= schedule.topology.compute_count) & ~able).any():
        yield ScheduleViolation("route-ends", "a route starts or ends at a switch that neither multicasts nor adds")
    elif able.any() and (schedule.kind != "pipelined" or schedule.barriers):
        yield ScheduleViolation("route-ends", "only pipelined schedules without barriers can use switches")


def _column_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    bounds, columns = schedule.bounds, schedule.transfers.columns
    if schedule.steps >= NEVER - 1:
        yield ScheduleViolation("steps", f"{schedule.steps} steps are more than the {NEVER - 2} that can be replayed")
    ends = (0, *schedule.barriers, schedule.steps)
    if schedule.barriers and (schedule.kind != "pipelined" or any(one >= other for one, other in pairwise(ends))):
        text = f"{len(schedule.barriers)} barriers do not divide the {schedule.steps} steps of a pipelined schedule"
        yield ScheduleViolation("barriers", text)
    limits = (bounds.steps, bounds.routes, bounds.shards, bounds.chunks_per_shard, bounds.chunks_per_shard + 1, 2)
    yield from column_violations(columns, bounds.dtypes, limits)


def column_violations(
    columns: tuple[NDArray[np.unsignedinteger], ...], dtypes: tuple[np.dtype, ...], limits: tuple[int, ...]
) -> Iterator[ScheduleViolation]:
    """Yield a violation for each column of the wrong type, then for each column with a value at or above its limit."""
    for name, column, dtype in zip(COLUMN_NAMES, columns, dtypes, strict=True):
        if column.dtype != dtype:
            yield ScheduleViolation("column-type", f"column {name} has type {column.dtype}, not {dtype}")
    for name, column, limit in zip(COLUMN_NAMES, columns, limits, strict=True):
        if len(column) and int(column.max()) >= limit:
            text = f"row {int(np.argmax(column))}: {name} is {int(column.max())}, not below {limit}"
            yield ScheduleViolation("column-range", text)


def _size_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    """Yield violations for sizes that do not fit the collective and for transfers beyond the end of their shard."""
    collective, most = schedule.collective, schedule.chunks_per_shard
    if collective.sizes is None and not collective.name.is_uneven:
        return
    sizes = collective.sizes or ()
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


def _row_violations(schedule: Schedule) -> Iterator[ScheduleViolation]:
    transfers = schedule.transfers
    empty = np.flatnonzero(transfers.lo >= transfers.hi)
    if len(empty):
        yield ScheduleViolation("interval", f"row {int(empty[0])}: the chunk interval is empty")
    self_sent = np.flatnonzero(schedule.src == schedule.dst)
    if len(self_sent):
        yield ScheduleViolation("self-send", f"row {int(self_sent[0])}: a rank sends to itself")
