"""The schedules of a two-way network, of a degree expansion and of a Cartesian power, from those of their factors.

Also what they share: which schedules they accept, link ids in the result, rows that become several.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Routes, Schedule
from chorale.synth.topology.links import link_ids
from chorale.synth.topology.topology import Topology

Column: TypeAlias = NDArray[np.integer]


def require_expandable(schedule: Schedule) -> None:
    """Refuse what is not a stepped allgather over single links."""
    if (
        schedule.collective != ALLGATHER
        or schedule.kind != "stepped"
        or not schedule.routes.is_direct(len(schedule.topology.links))
    ):
        rule = "a schedule must be a stepped allgather over direct links to be expanded"
        raise InvalidInput(rule, f"{schedule.kind} {schedule.collective} by {schedule.method}", "expand an allgather")


def require_size(transfers: int, topology: Topology) -> None:
    """Refuse a schedule that would be too large, before it is made."""
    if transfers > MAX_TRANSFERS:
        rule = f"an expanded schedule must have at most {MAX_TRANSFERS} transfers"
        raise InvalidInput(rule, f"{transfers} on {topology.spec}", "choose fewer nodes, or bfb, which makes fewer")


def allgather_from_columns(
    base: Schedule, topology: Topology, steps: int, chunks: int, columns: Sequence[Column]
) -> Schedule:
    """Return the allgather on `topology` with `columns` step, route, shard, lo and hi; provenance is that of `base`."""
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    routes = Routes.direct(len(topology.links))
    return Schedule(topology, ALLGATHER, "stepped", steps, chunks, transfers, routes, base.method, base.parameters)


def repeat_rows(counts: Column) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return, for rows of which row r shall become `counts[r]` rows: the old row of each new one, and its number there.

    counts [2, 0, 3] give [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]. O(new rows).
    """
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    start = (np.cumsum(counts) - counts).astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - start[owner]


def bidirectional_schedule(forwards: Schedule, backwards: Schedule, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the union of G and its transpose.

    `forwards` runs on G and takes the first half of every shard, `backwards` on the transpose of G and takes the other
    half. They share no links, so steps run side by side: as many as the longer has, each as slow as the slower.
    Twice the least common multiple of their chunks. O(rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.6, which
    takes as `backwards` the image of `forwards` on a reverse-symmetric network.
    """
    require_expandable(forwards)
    require_expandable(backwards)
    half = lcm(forwards.chunks_per_shard, backwards.chunks_per_shard)
    ids = np.split(_link_ids(forwards.topology, backwards.topology), [len(forwards.topology.links)])
    parts: list[tuple[Column, ...]] = []
    for schedule, own_ids, first in ((forwards, ids[0], 0), (backwards, ids[1], half)):
        rows, factor = schedule.transfers, half // schedule.chunks_per_shard
        lo, hi = (column.astype(np.int64) * factor + first for column in (rows.lo, rows.hi))
        parts.append((rows.step, own_ids[rows.route], rows.shard, lo, hi))
    columns = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
    return allgather_from_columns(forwards, topology, max(forwards.steps, backwards.steps), 2 * half, columns)


def _link_ids(network: Topology, transpose: Topology) -> Column:
    """Return the ids in the union of the links of `network`, then of those of its transpose."""
    columns = [
        np.concatenate([getattr(network.links, name), getattr(transpose.links, name)])
        for name in ("src", "dst", "bandwidth_class", "latency_class")
    ]
    return link_ids(columns[0], columns[1], columns[2], columns[3])


def degree_schedule(base: Schedule, copies: int, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the network G of `base` with every node copied `copies` times.

    What `base` sends from u to w, copy j of u sends to all copies of w, for the shard of copy j of the shard's node.
    In one more step every node collects the shards of its own copies, in equal parts over its links. Chunks are cut
    to the least common multiple with the number of links into a node. G has no self-loops. O(new rows); copies^2 for
    each row of `base`.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 2.
    """
    require_expandable(base)
    rows = base.transfers
    require_size(len(rows) * copies**2 + len(topology.links) * (copies - 1), topology)
    last = _among_copies(copies, topology) if copies > 1 else None
    chunks = base.chunks_per_shard if last is None else lcm(base.chunks_per_shard, int(np.lcm.reduce(last[2])))
    factor = chunks // base.chunks_per_shard
    ids = _link_ids_degree(base.topology, copies)
    route = ids[rows.route].ravel()
    row = np.repeat(np.arange(len(rows)), copies**2)
    shard = (rows.shard[:, None].astype(np.int32) * copies + np.repeat(np.arange(copies), copies)).ravel()
    columns: list[Column] = [rows.step[row], route, shard]
    columns += [rows.lo.astype(np.int64)[row] * factor, rows.hi.astype(np.int64)[row] * factor]
    if last is None:
        return allgather_from_columns(base, topology, base.steps, chunks, columns)
    last_route, last_shard, parts, part = last
    size = chunks // parts
    final = (np.full(len(last_route), base.steps), last_route, last_shard, part * size, (part + 1) * size)
    joined = [np.concatenate(pair) for pair in zip(columns, final, strict=True)]
    return allgather_from_columns(base, topology, base.steps + 1, chunks, joined)


def _link_ids_degree(network: Topology, copies: int) -> Column:
    """Return int32[links, copies^2]: for each link u w the links from copy j of u to copy i of w, at j * copies + i."""
    links, copy = network.links, np.arange(copies)
    src = (links.src[:, None] * np.int64(copies) + np.repeat(copy, copies)).ravel()
    dst = (links.dst[:, None] * np.int64(copies) + np.tile(copy, copies)).ravel()
    bandwidth_class, latency_class = (
        np.repeat(column, copies**2) for column in (links.bandwidth_class, links.latency_class)
    )
    return link_ids(src, dst, bandwidth_class, latency_class).reshape(len(links), copies**2)


def _among_copies(copies: int, topology: Topology) -> tuple[Column, Column, Column, Column]:
    """Return route, shard, number of parts, and which part, of the exchange among copies of one node."""
    links = topology.links
    first_in = links.incoming_offsets(topology.node_count)
    link, turn = repeat_rows(np.full(len(links), copies - 1))
    receiver = links.dst[link]
    own_copy = receiver % copies
    shard = receiver - own_copy + (own_copy + 1 + turn) % copies
    parts = np.diff(first_in)[receiver]
    return link, shard, parts, link - first_in[receiver]


Ids = NDArray[np.int32]


def power_schedule(base: Schedule, times: int, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the product of `times` copies of the network of `base`.

    Every shard is cut into `times` parts. Part i runs `base` along dimension i, then with all that was gathered along
    dimension i + 1, and so on in a circle; at any time each dimension serves one part. `times` times as many steps
    and chunks. O(new rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 14.
    """
    require_expandable(base)
    nodes = base.topology.node_count
    require_size(len(base.transfers) * times * sum(nodes ** (times - 1 + stage) for stage in range(times)), topology)
    parts = list(_stages(base, times))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return allgather_from_columns(base, topology, times * base.steps, times * base.chunks_per_shard, columns)


def _stages(base: Schedule, times: int) -> Iterator[tuple[NDArray[np.integer], ...]]:
    """Yield the columns step, route, shard, lo and hi of each part in each of its stages."""
    rows, count = base.transfers, base.topology.node_count
    rank = np.arange(count**times, dtype=np.int32).reshape([count] * times)
    ids = _link_ids_power(base.topology, rank)
    chunks = base.chunks_per_shard
    for part in range(times):
        for stage in range(times):
            axis = (part + stage) % times
            gathered = [(part + before) % times for before in range(stage)]
            pending = [other for other in range(times) if other != axis and other not in gathered]
            order = [axis, *gathered, *pending]
            shape = (-1, count**stage, count ** (times - 1 - stage))
            route = ids[axis].transpose(order).reshape(shape)[rows.route][:, None, :, :]
            shard = rank.transpose(order).reshape(shape)[rows.shard][:, :, None, :]
            route, shard = np.broadcast_arrays(route, shard)
            copies = route.size // max(1, len(rows))
            step, lo, hi = (
                np.repeat(column.astype(np.int32) + offset, copies)
                for column, offset in (
                    (rows.step, stage * base.steps),
                    (rows.lo, part * chunks),
                    (rows.hi, part * chunks),
                )
            )
            yield step, route.ravel(), shard.ravel(), lo, hi


def _link_ids_power(network: Topology, rank: Ids) -> list[Ids]:
    """Return for each axis of the grid `rank` the ids of its links, by link of the factor there and place elsewhere."""
    links = network.links
    axes = range(rank.ndim)
    src = [np.take(rank, links.src, axis) for axis in axes]
    dst = [np.take(rank, links.dst, axis) for axis in axes]
    classes = []
    for column in (links.bandwidth_class, links.latency_class):
        spread = [np.moveaxis(np.broadcast_to(column, (*rank.shape[1:], len(links))), -1, axis) for axis in axes]
        classes.append(np.concatenate([grid.ravel() for grid in spread]))
    ends = [np.concatenate([grid.ravel() for grid in side]) for side in (src, dst)]
    ids = link_ids(ends[0], ends[1], classes[0], classes[1])
    return [part.reshape(grid.shape) for part, grid in zip(np.split(ids, rank.ndim), src, strict=True)]
