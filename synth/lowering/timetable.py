"""When the transfers of trees would travel if they waited for nothing but data and links.

A block goes through its messages in one fixed order. In the order of the depths all blocks work on the same depth at
once, so that a program takes the sum over depths of the busiest link of each, and not the time of the busiest link of
all. So blocks take the order of a list schedule: a free link takes the available transfer with the longest path to go.
Sources: Hu, "Parallel sequencing and assembly line problems", 1961; Graham, "Bounds on multiprocessing timing
anomalies", 1969.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.lowering.vector_layout import Column
from chorale.synth.schedule.schedule import ProcessSchedule, Schedule, Transfers
from chorale.synth.topology.topology import Topology

FASTEST_CHUNK_TIME = 2**12
"""Time that a chunk takes on the fastest link; those on others are rounded up to whole numbers."""
MAX_CHUNK_TIME = 2**26
MAX_VISITS = 2**23

WRITES_SUM, WRITES, READS = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """start: when each transfer begins, in units in which a chunk takes `FASTEST` on the fastest link
    step:  which stretch of time that is in: whatever waits for a transfer is in a later one
    end:   when all are through
    busiest: how long the busiest link is busy
    """

    start: Column
    step: Column
    end: int
    busiest: int


class Moves(NamedTuple):
    """What rows need of links: row i keeps each of `links[first[i] : end[i]]` busy for `chunks[i]` times its weight."""

    chunks: Column
    first: Column
    end: Column
    links: NDArray[np.int32]
    weight: Column


class Visits(NamedTuple):
    """What rows need of one another. A row visits the cells of its chunks at both its ends; the visits of row i are
    `first[i]` to `first[i + 1] - 1`. Those that a cell gets in a row, all to write or all to read, are a run; runs of a
    cell follow one another.

    run:       which run each visit belongs to
    rows:      the rows of all runs, run by run; those of run r begin at `run_first[r]`
    is_last:   1 for the last run of each cell
    """

    first: Column
    run: Column
    rows: Column
    run_first: Column
    is_last: NDArray[np.int8]


def timetable_of(schedule: Schedule, transfers: Transfers) -> Timetable | None:
    """Return the timetable of `transfers` of a pipelined `schedule`.

    None where a step takes from a place what it also puts there, so that no order of transfers has the same meaning,
    and for more than 2^22 chunks moved. O((chunks moved + links of routes) * log(rows)).
    """
    count = transfers.hi.astype(np.int64) - transfers.lo
    if 2 * int(count.sum()) > MAX_VISITS:
        return None
    visits = _visits(schedule, transfers, count)
    if visits is None:
        return None
    routes = schedule.routes
    weight = _weights(schedule.topology)
    moves = Moves(count, routes.offsets[transfers.route], routes.offsets[transfers.route + 1], routes.link_ids, weight)
    tail = native.remaining_times(moves, visits, np.argsort(transfers.step, kind="stable")[::-1].astype(np.int64))
    row_at = np.argsort(-tail, kind="stable")
    if isinstance(schedule, ProcessSchedule):
        # Sums that go up must not hold results back: what comes first in the vector goes first.
        row_at = row_at[np.argsort(transfers.lo[row_at], kind="stable")]
    rank = np.empty_like(row_at)
    rank[row_at] = np.arange(len(row_at))
    start, before = native.start_times(moves, visits, row_at, rank)
    step = native.time_stretches(start, before, row_at[np.argsort(start[row_at], kind="stable")])
    return Timetable(start, step, *_totals(moves, start))


def _visits(schedule: Schedule, transfers: Transfers, count: Column) -> Visits | None:
    """Return who waits for whom; None where a cell is read and written in one step."""
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


def _weights(topology: Topology) -> Column:
    """Return how long a chunk takes on each link."""
    bandwidths = topology.links.bandwidths
    fastest = max(bandwidths)
    times = [min(-(-FASTEST_CHUNK_TIME * fastest // bandwidth), MAX_CHUNK_TIME) for bandwidth in bandwidths]
    return np.array(times, dtype=np.int64)[topology.links.bandwidth_class]


def _totals(moves: Moves, start: Column) -> tuple[int, int]:
    """Return when the last transfer is through, and how long the busiest link is busy."""
    hops = moves.end - moves.first
    row = np.repeat(np.arange(len(hops)), hops)
    link = moves.links[moves.first[row] + np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)]
    time = moves.weight[link] * moves.chunks[row]
    busy = np.zeros(len(moves.weight), dtype=np.int64)
    np.add.at(busy, link, time)
    return int((start[row] + time).max(initial=0)), int(busy.max(initial=0))
