"""Computes timetables: start times for tree transfers that wait only for their data and their links.

A block processes its messages in one fixed order. If this order followed the tree depths, all blocks would work on the
same depth at the same time, and the run time would be the sum over depths of the time of the busiest link at each
depth. Blocks therefore use the order of a list schedule: a free link takes the available transfer with the longest
remaining path. Sources: Hu, "Parallel sequencing and assembly line problems", 1961; Graham, "Bounds on multiprocessing
timing anomalies", 1969.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.lowering.vector_layout import Column
from chorale.synth.schedule.schedule import ProcessSchedule, Schedule, Transfers

FASTEST_CHUNK_TIME = 2**12
"""Number of time units that a chunk takes on the fastest link. Times on other links are rounded up to full units."""
MAX_CHUNK_TIME = 2**26
MAX_VISITS = 2**23

WRITES_SUM, WRITES, READS = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Start times of transfers by list scheduling. A chunk takes FASTEST_CHUNK_TIME time units on the fastest link.

    start:   start time of each transfer
    step:    time interval in which each transfer begins, later than the intervals of the transfers that it waits for
    end:     time at which all transfers have ended
    busiest: total time for which the busiest link is occupied
    """

    start: Column
    step: Column
    end: int
    busiest: int


class Moves(NamedTuple):
    """Links used by each row: row i occupies each of `links[first[i] : end[i]]` for `chunks[i]` * the link's weight."""

    chunks: Column
    first: Column
    end: Column
    links: NDArray[np.int32]
    weight: Column


class Visits(NamedTuple):
    """Dependences between rows (transfers). A row visits the memory cells of its chunks at both ends of its route.

    A run is a sequence of consecutive visits to a cell that are all reads, all writes, or all writes of sums. The rows
    of a run wait for the rows of the previous run. Runs of the same cell have consecutive numbers.

    first:     for each row, index of its first visit; at the end, the number of visits
    run:       for each visit, the run that it belongs to
    rows:      for each visit in order of runs, its row
    run_first: for each run, index of its first entry in `rows`; at the end, the number of visits
    is_last:   1 for the last run of each cell, otherwise 0
    """

    first: Column
    run: Column
    rows: Column
    run_first: Column
    is_last: NDArray[np.int8]


def timetable_of(schedule: Schedule, transfers: Transfers) -> Timetable | None:
    """Compute a timetable for `transfers` of a pipelined `schedule`. O((chunks moved + links of routes) * log(rows)).

    Returns None if more than 2^22 chunks are moved, or if a step reads a cell that it also writes: then no sequential
    order of the transfers gives the same result.
    """
    count = transfers.hi.astype(np.int64) - transfers.lo
    if 2 * int(count.sum()) > MAX_VISITS:
        return None
    visits = _visits(schedule, transfers, count)
    if visits is None:
        return None
    routes = schedule.routes
    # Time that a chunk takes on each link
    bandwidths = schedule.topology.links.bandwidths
    fastest = max(bandwidths)
    times = [min(-(-FASTEST_CHUNK_TIME * fastest // bandwidth), MAX_CHUNK_TIME) for bandwidth in bandwidths]
    weight = np.array(times, dtype=np.int64)[schedule.topology.links.bandwidth_class]
    moves = Moves(count, routes.offsets[transfers.route], routes.offsets[transfers.route + 1], routes.link_ids, weight)
    tail = native.remaining_times(moves, visits, np.argsort(transfers.step, kind="stable")[::-1].astype(np.int64))
    row_at = np.argsort(-tail, kind="stable")
    if isinstance(schedule, ProcessSchedule):
        # Sums must not delay results, so transfers are ordered by their position in the vector first.
        row_at = row_at[np.argsort(transfers.lo[row_at], kind="stable")]
    rank = np.empty_like(row_at)
    rank[row_at] = np.arange(len(row_at))
    start, before = native.start_times(moves, visits, row_at, rank)
    step = native.time_stretches(start, before, row_at[np.argsort(start[row_at], kind="stable")])
    hops = moves.end - moves.first
    row = np.repeat(np.arange(len(hops)), hops)
    link = moves.links[moves.first[row] + np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)]
    time = moves.weight[link] * moves.chunks[row]
    busy = np.zeros(len(moves.weight), dtype=np.int64)
    np.add.at(busy, link, time)
    return Timetable(start, step, int((start[row] + time).max(initial=0)), int(busy.max(initial=0)))


def _visits(schedule: Schedule, transfers: Transfers, count: Column) -> Visits | None:
    """Return the dependences between rows, or None if a step both reads and writes a cell."""
    links = schedule.topology.links
    ends = [
        side(links)[transfers.route].astype(np.int64)
        for side in (schedule.routes.destinations, schedule.routes.sources)
    ]
    row = np.repeat(np.arange(len(count)), 2 * count)
    first = np.concatenate([[0], np.cumsum(2 * count)])
    within, is_source = np.divmod(np.arange(len(row)) - first[row], 2)
    chunk = transfers.shard[row].astype(np.int64) * schedule.chunks_per_shard + transfers.lo[row] + within
    chunks = schedule.shard_count * schedule.chunks_per_shard
    cell = np.where(is_source, ends[1][row], ends[0][row]) * chunks + chunk
    kind = np.where(is_source, READS, np.where(transfers.reduce[row] == 1, WRITES_SUM, WRITES))
    step = transfers.step[row].astype(np.int64)
    order = np.lexsort((kind, step, cell))
    cell, kind, step, row = (column[order] for column in (cell, kind, step, row))
    follows = np.diff(cell) == 0
    changes = np.diff(kind) != 0
    if (follows & changes & (np.diff(step) == 0)).any():
        return None
    border = np.concatenate([[True], ~follows | changes]) if len(row) else np.zeros(0, dtype=np.bool_)
    run = np.empty(len(row), dtype=np.int64)
    run[order] = np.cumsum(border) - 1
    run_first = np.flatnonzero(border)
    is_last = np.diff(cell[run_first], append=-1) != 0
    return Visits(first, run, row, np.append(run_first, len(row)), is_last.astype(np.int8))
