"""Turns a schedule's transfers into messages. A message moves chunks of the program between two ranks on a channel.

Runtimes choose the network port of a message by its channel. If the ranks of a box share several rails (for example one
with all even ports and one with all odd ports), all transfers of a tree should use channels of the same rail.

A block processes its messages in one fixed order. If this order followed the tree depths, all blocks would work on the
same depth at the same time. Each depth would then take as long as its busiest link. Blocks therefore follow a timetable
from a list schedule: a free link takes the available transfer with the longest remaining path. Sources: Hu, "Parallel
sequencing and assembly line problems", 1961; Graham, "Bounds on multiprocessing timing anomalies", 1969.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.lowering.options import LoweringOptions
from chorale.synth.lowering.vector_layout import Column, NarrowColumn, VectorLayout, expand_intervals
from chorale.synth.programs.check_structure import TargetLimits
from chorale.synth.schedule.schedule import ProcessSchedule, Schedule, Transfers
from chorale.synth.topology.topology import connected_labels

FASTEST_CHUNK_TIME = 2**12
"""Number of time units that a chunk takes on the fastest link. Times on other links are rounded up to full units."""
MAX_CHUNK_TIME = 2**26
MAX_VISITS = 2**23

WRITES_SUM, WRITES, READS = 0, 1, 2


@dataclass(frozen=True, slots=True, eq=False)
class Timetable:
    """Start times of transfers, from list scheduling. A chunk takes FASTEST_CHUNK_TIME time units on the fastest link.

    start:   start time of each transfer
    step:    index of the interval in which each transfer begins. A transfer begins in a later interval than all
             transfers for which it waits.
    end:     time at which all transfers have ended
    busiest: total time for which the busiest link is occupied
    """

    start: Column
    step: Column
    end: int
    busiest: int


class Visits(NamedTuple):
    """Says which rows (transfers) wait for which other rows, based on their visits (accesses) to memory cells.

    For each of its chunks, a row visits one cell at the sender and one at the receiver. A run is a sequence of
    consecutive visits to a cell that are all reads, all writes, or all writes of sums. The rows of a run wait for the
    rows of the previous run of the cell. Runs of the same cell have consecutive numbers.

    first:     for each row, index of its first visit; at the end, the number of visits
    run:       for each visit, the run that it belongs to
    rows:      for each visit in order of runs, its row
    run_first: for each run, index of its first entry in `rows`; at the end, the number of visits
    is_last:   for each run, 1 if it is the last run of its cell, otherwise 0
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
    first, end, links = routes.offsets[transfers.route], routes.offsets[transfers.route + 1], routes.link_ids
    latest_first = np.argsort(transfers.step, kind="stable")[::-1].astype(np.int64)
    # If switches add, order by position in the vector first, so that sums of later chunks do not delay earlier results.
    priority = transfers.lo.astype(np.int64) if isinstance(schedule, ProcessSchedule) else np.zeros_like(latest_first)
    start, step = native.timetable((count, first, end, links, weight), visits, latest_first, priority)
    hops = end - first
    row = np.repeat(np.arange(len(hops)), hops)
    link = links[first[row] + np.arange(len(row)) - np.repeat(np.cumsum(hops) - hops, hops)]
    time = weight[link] * count[row]
    busy = np.zeros(len(weight), dtype=np.int64)
    np.add.at(busy, link, time)
    return Timetable(start, step, int((start[row] + time).max(initial=0)), int(busy.max(initial=0)))


def _visits(schedule: Schedule, transfers: Transfers, count: Column) -> Visits | None:
    """Find which transfers wait for which others. Returns None if a step both reads and writes a memory cell."""
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


def rails_of(schedule: Schedule, transfers: Transfers) -> Column:
    """Return the rail (switch between boxes) of each transfer; all 0 if channels need not distinguish rails.

    A rail is any switch that is not linked directly to a rank. A transfer between boxes passes exactly one rail. A
    transfer inside a box gets the rail on which its chunk first leaves a box. If the chunk never leaves, the transfer
    gets its sender's rail. O(rows + chunks moved between boxes).
    """
    links, routes, ranks = schedule.topology.links, schedule.routes, schedule.topology.compute_count
    nowhere = np.zeros(len(transfers), dtype=np.int64)
    if not len(routes) or schedule.topology.node_count == ranks:
        return nowhere
    is_rail = np.ones(schedule.topology.node_count, dtype=np.bool_)
    is_rail[:ranks] = False
    is_rail[links.dst[links.src < ranks]] = False
    is_rail[links.src[links.dst < ranks]] = False
    passed, starts = links.dst[routes.link_ids], routes.offsets[:-1]
    node = np.maximum.reduceat(np.where(is_rail[passed], passed, -1), starts)
    if np.add.reduceat(is_rail[passed].astype(np.int64), starts).max() > 1:
        return nowhere  # a route passes several rails
    rail = np.where(node < 0, -1, np.searchsorted(np.unique(node[node >= 0]), node))[transfers.route]
    sender, receiver = routes.sources(links)[transfers.route], routes.destinations(links)[transfers.route]
    ports = np.zeros((ranks, 1 + int(rail.max(initial=0))), dtype=np.bool_)  # whether a rank sends over a rail
    crossing = rail >= 0
    ports[sender[crossing], rail[crossing]] = True
    box = connected_labels(ranks, sender[~crossing], receiver[~crossing])
    users = np.zeros(ports.shape, dtype=np.int64)
    np.add.at(users, box, ports)
    if ports.shape[1] == 1 or not (users > 1).any():  # ranks of a box do not share rails
        return nowhere
    # The rail on which each tree first leaves a box, or -1. Trees are identified by first chunk and whether they add.
    tree = (transfers.shard.astype(np.int64) * schedule.chunks_per_shard + transfers.lo) * 2 + transfers.reduce
    rail_of_tree = np.full(2 * schedule.shard_count * schedule.chunks_per_shard, -1, dtype=np.int64)
    leaving = np.flatnonzero(crossing)
    leaving = leaving[np.argsort(transfers.step[leaving], kind="stable")[::-1]]
    length = transfers.hi[leaving].astype(np.int64) - transfers.lo[leaving]
    row, within = expand_intervals(np.zeros(len(leaving), dtype=np.int64), length)
    rail_of_tree[tree[leaving][row] + 2 * within] = rail[leaving][row]
    first = rail_of_tree[tree]
    return np.where(crossing, rail, np.where(first >= 0, first, ports[sender].argmax(axis=1)))


MIN_LEVELS_FOR_CHANNEL_RANGES = 4
"""In trees with at least this many levels, each channel is used for a range of levels or for a time interval.

This would not make trees with fewer levels faster.
"""
MIN_LEVELS_FOR_TIMETABLE = 3
"""Trees with at least this many levels follow a timetable. For shallower trees, ordering by depth is good enough."""
MAX_STREAMING_STEPS = 256


@dataclass(frozen=True, slots=True, eq=False)
class ChannelMessages:
    """Messages as columns, sorted by step. Message i moves chunks `first` to `end - 1` from `sender` to `receiver`.

    Chunks are numbered as in `VectorLayout`. `reduces` is 1 if the receiver adds the chunks to its own data.
    """

    step: NarrowColumn
    sender: NarrowColumn
    receiver: NarrowColumn
    channel: NarrowColumn
    first: NarrowColumn
    end: NarrowColumn
    reduces: NarrowColumn

    def __len__(self) -> int:
        return len(self.step)

    def select(self, rows: slice | NDArray[np.int64] | NDArray[np.bool_]) -> ChannelMessages:
        return ChannelMessages(*(getattr(self, item.name)[rows] for item in fields(self)))

    def cells(self) -> tuple[NarrowColumn, NarrowColumn]:
        """Return two columns, message index and chunk index, with one row for each chunk of each message, in order."""
        length = self.end - self.first
        before = np.cumsum(length, dtype=np.int32) - length
        row = np.repeat(np.arange(len(length), dtype=np.int32), length)
        chunk = np.repeat(self.first - before, length)
        chunk += np.arange(len(chunk), dtype=np.int32)
        return row, chunk


def tree_levels(schedule: Schedule) -> int:
    """Return the number of tree levels (up and down) through which data stream, or 0 for a stepped schedule."""
    if schedule.kind != "pipelined" or schedule.collective.is_alltoall:
        return 0
    return int(schedule.transfers.step.max(initial=0)) + 1


def streaming_order(schedule: Schedule, vector: VectorLayout) -> Timetable | None:
    """Return a timetable for the transfers of deep trees with many roots, or None if blocks execute steps in order.

    A tree for the complete vector needs no timetable, because it sends the chunks one by one through all depths.
    """
    borders = (0, *schedule.barriers, tree_levels(schedule))
    height = max(after - before for before, after in pairwise(borders))
    if vector.is_single_shard or height < MIN_LEVELS_FOR_TIMETABLE:
        return None
    return timetable_of(schedule, vector.transfers)


def streaming_chunks(schedule: Schedule, vector: VectorLayout, limits: TargetLimits) -> int:
    """Return how many chunks each transfer should move in trees with many roots.

    Chunks in one transfer are forwarded only when all of them have arrived, so fewer chunks are better. However, with
    few chunks per transfer, a rank or pair of ranks may need more transfers than the limits allow. Returns the smallest
    number of chunks that keeps transfer counts well below the limits, or the longest transfer's length if none does.
    O(rows * log(chunks of a transfer)).
    """
    transfers, links = vector.transfers, schedule.topology.links
    length = transfers.hi.astype(np.int64) - transfers.lo
    most = int(length.max(initial=1))
    if most == 1:
        return 1
    ends = (side(links)[transfers.route] for side in (schedule.routes.sources, schedule.routes.destinations))
    sender, receiver = (end.astype(np.int64) for end in ends)
    _, pair = np.unique(sender * schedule.topology.compute_count + receiver, return_inverse=True)

    def fits(longest: int) -> bool:
        parts = -(-length // longest)
        ranks = np.bincount(sender, weights=parts), np.bincount(receiver, weights=parts)
        steps, elements = min(limits.steps, MAX_STREAMING_STEPS), limits.elements_per_rank
        return bool(
            np.bincount(pair, weights=parts).max() <= steps * 3 // 4 and sum(map(np.max, ranks)) <= elements // 2
        )

    return min(1 + bisect_left(range(1, most + 1), True, key=fits), most)


def messages_of(schedule: Schedule, vector: VectorLayout, options: LoweringOptions) -> ChannelMessages:
    """Return the schedule's messages, sorted by (step, start, sender, receiver, lane, instance, channel, chunk).

    Steps are the schedule's steps or the time intervals of its `streaming_order`. A transfer over a route of several
    links becomes one message between the ends of the route. Parallel links between two ranks are different lanes.

    Normally, the chunks sent over a connection in a step are distributed over the channels of every instance. In deep
    trees, each channel instead gets all chunks in a range of depths or in a time interval. Runtimes move long chunks in
    several passes, and a block begins a pass only after it has finished the previous pass. If a block handled all
    depths from root to leaves, it would wait for the complete tree in every pass. Channels without messages are
    removed, and the others are renumbered. O(rows * log(rows)).
    """
    rows = _sorted_rows(schedule, vector, options.channels)
    lanes = 1 + int(rows.lane.max(initial=0))
    parts = [
        _part(rows, instance, group, vector, lanes, options)
        for instance in range(options.instances)
        for group in range(options.channels)
    ]
    del rows  # to save memory: the rows are as large as the messages
    order, start, *columns = map(np.concatenate, zip(*parts, strict=True))
    messages = ChannelMessages(*(column.astype(np.int32, copy=False) for column in columns))
    channel = np.unique(messages.channel, return_inverse=True)[1].astype(np.int32)
    return replace(messages, channel=channel).select(np.lexsort((order, start, messages.step)))


@dataclass(frozen=True, slots=True, eq=False)
class _MessageRows:
    """Transfers sorted by (step of the schedule, sender, receiver, lane, shard, chunk).

    Rows with equal (step, sender, receiver, lane) form a group.

    lane:       identifies the rail, and the link among parallel links between two ranks
    low, high:  chunks `low` to `high - 1` of the shard
    connection: number of the group
    begun:      number of the group's chunks in earlier rows
    total:      number of the group's chunks in all rows
    channels:   number of channels over which the group is spread, proportional to the traffic between its ranks
    whole:      channel that carries the complete row; -1 if the group is spread over several channels
    moment:     step of the lowered program, while `step` is the step of the schedule
    start:      start time in the timetable; 0 without a timetable
    """

    step: NarrowColumn
    sender: NarrowColumn
    receiver: NarrowColumn
    lane: NarrowColumn
    shard: NarrowColumn
    low: NarrowColumn
    high: NarrowColumn
    reduces: NarrowColumn
    connection: Column
    begun: Column
    total: Column
    channels: Column
    whole: Column
    moment: NarrowColumn
    start: Column


def _sorted_rows(schedule: Schedule, vector: VectorLayout, channels: int) -> _MessageRows:
    transfers = vector.transfers
    # For each one-link route, its index among the parallel links between the two ranks; 0 for longer routes.
    routes = schedule.routes
    single = np.diff(routes.offsets) == 1
    of_first_link = schedule.topology.links.parallel_index()[routes.link_ids[routes.offsets[:-1]]]
    parallel = np.where(single, of_first_link, 0).astype(np.int32)
    lane = rails_of(schedule, transfers) * (1 + parallel.max(initial=0)) + parallel[transfers.route]
    links = schedule.topology.links
    sender = schedule.routes.sources(links)[transfers.route]
    receiver = schedule.routes.destinations(links)[transfers.route]
    order = np.lexsort((transfers.lo, transfers.shard, lane, receiver, sender, transfers.step))
    given = (transfers.step, sender, receiver, lane, transfers.shard, transfers.lo, transfers.hi, transfers.reduce)
    columns = [column.astype(np.int32, copy=False)[order] for column in given]
    changes = np.ones(len(order), dtype=np.bool_)
    changes[1:] = False
    for column in columns[:4]:
        changes[1:] |= column[1:] != column[:-1]
    connection = np.cumsum(changes) - 1
    length = columns[6] - columns[5]
    before = np.cumsum(length, dtype=np.int64) - length
    total = np.bincount(connection, weights=length).astype(np.int64)
    begun = before - before[changes][connection]
    pair = columns[1].astype(np.int64) * schedule.topology.compute_count + columns[2]
    spread = _channels(pair, columns[3], length, channels) if channels > 1 else np.ones_like(pair)
    whole, moment, start = np.full_like(pair, -1), columns[0], np.zeros_like(pair)
    levels, times = tree_levels(schedule), streaming_order(schedule, vector)
    if levels >= MIN_LEVELS_FOR_CHANNEL_RANGES:
        whole = columns[0].astype(np.int64) * channels // levels
    if times is not None:
        moment, start = times.step[order].astype(np.int32), times.start[order]
        whole = start * channels // times.end if levels >= MIN_LEVELS_FOR_CHANNEL_RANGES else whole
    return _MessageRows(*(*columns, connection, begun, total[connection], spread, whole, moment, start))


def _channels(pair: Column, lane: NarrowColumn, length: NarrowColumn, most: int) -> Column:
    """Return the number of channels among which the chunks of each row are divided.

    The busiest lane gets `most` channels. Other lanes get a number proportional to their work, so that all blocks of a
    rank have nearly equal work.
    """
    _, number = np.unique(pair * (1 + int(lane.max(initial=0))) + lane, return_inverse=True)
    work = np.bincount(number, weights=length).astype(np.int64)
    channels: Column = -(-work * most // work.max(initial=1))
    return channels[number]


def _part(
    rows: _MessageRows, instance: int, group: int, vector: VectorLayout, lanes: int, options: LoweringOptions
) -> list[Column | NarrowColumn]:
    """Return the messages on one channel (`group`) of one instance as columns, preceded by two sort keys.

    In each step, the chunks of a connection are divided among its channels as evenly as possible.
    """
    # The chunks that the channel takes from each row, numbered within the connection's group of rows
    end = rows.begun + rows.high - rows.low
    low = np.where(rows.whole == group, rows.begun, np.maximum(rows.begun, rows.total * group // rows.channels))
    high = np.where(rows.whole == group, end, np.minimum(end, rows.total * (group + 1) // rows.channels))
    is_spread = (rows.whole < 0) & (low < high) & (group < rows.channels)
    used = np.flatnonzero(is_spread | (rows.whole == group))
    # Rotate by step, so that it is not always the same channel that gets one more chunk, and by rank for balance.
    turned = (group + rows.step[used]) % rows.channels[used] + rows.sender[used] + rows.receiver[used]
    channel = np.where(rows.whole[used] < 0, turned % options.channels, group)
    slot = instance * options.channels + channel
    shift = vector.first(rows.shard[used].astype(np.int64), instance) + rows.low[used] - rows.begun[used]
    order = (rows.connection[used] * options.instances + instance) * options.channels + group
    ends = [rows.moment[used], rows.sender[used], rows.receiver[used]]
    bounds = [(shift + side[used]).astype(np.int32) for side in (low, high)]
    return [order, rows.start[used], *ends, slot * lanes + rows.lane[used], *bounds, rows.reduces[used]]
