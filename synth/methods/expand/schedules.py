"""Expands the schedules of networks to two-way networks, degree expansions, powers and line graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLGATHER
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import MAX_TRANSFERS, ColumnBounds, Routes, Schedule
from chorale.synth.topology.expansions import line_order
from chorale.synth.topology.links import link_ids
from chorale.synth.topology.topology import Topology

Column: TypeAlias = NDArray[np.integer]


def require_expandable(schedule: Schedule) -> None:
    """Raise InvalidInput unless `schedule` is a stepped allgather over single links."""
    if (
        schedule.collective != ALLGATHER
        or schedule.kind != "stepped"
        or not schedule.routes.is_direct(len(schedule.topology.links))
    ):
        rule = "only stepped allgathers over direct links can be expanded, not a {}"
        raise InvalidInput(rule, f"{schedule.kind} {schedule.collective} by {schedule.method}", "expand an allgather")


def require_size(transfers: int, topology: Topology) -> None:
    """Raise InvalidInput if a schedule with this number of transfers would be too large. It need not exist yet."""
    if transfers > MAX_TRANSFERS:
        rule = f"an expanded schedule must have at most {MAX_TRANSFERS} transfers"
        raise InvalidInput(rule, f"{transfers} on {topology.spec}", "choose fewer nodes, or bfb, which makes fewer")


def allgather_from_columns(
    base: Schedule, topology: Topology, steps: int, chunks: int, columns: Sequence[Column]
) -> Schedule:
    """Return the allgather with columns step, route, shard, lo and hi, and with method and parameters of `base`."""
    bounds = ColumnBounds(steps, len(topology.links), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    routes = Routes.direct(len(topology.links))
    return Schedule(topology, ALLGATHER, "stepped", steps, chunks, transfers, routes, base.method, base.parameters)


def repeat_rows(counts: Column) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Repeat row r `counts[r]` times; return (old row of each new row, its index among the copies).

    counts [2, 0, 3] give [0, 0, 2, 2, 2] and [0, 1, 0, 1, 2]. O(new rows).
    """
    owner = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    start = (np.cumsum(counts) - counts).astype(np.int32)
    return owner, np.arange(len(owner), dtype=np.int32) - start[owner]


def bidirectional_schedule(forwards: Schedule, backwards: Schedule, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the union of a network G and its transpose.

    `forwards` runs on G with the first half of every shard, `backwards` on the transpose of G with the other half. The
    halves share no links, so their steps run in parallel. The number of chunks is twice the least common multiple of
    the schedules' numbers. O(rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", appendix A.6, in which
    `backwards` is the image of `forwards` on a reverse-symmetric network.
    """
    require_expandable(forwards)
    require_expandable(backwards)
    half = lcm(forwards.chunks_per_shard, backwards.chunks_per_shard)
    joined = [  # the links of G, then the links of the transpose
        np.concatenate([getattr(schedule.topology.links, name) for schedule in (forwards, backwards)])
        for name in ("src", "dst", "bandwidth_class", "latency_class")
    ]
    ids = np.split(link_ids(joined[0], joined[1], joined[2], joined[3]), [len(forwards.topology.links)])
    parts: list[tuple[Column, ...]] = []
    for schedule, own_ids, first in ((forwards, ids[0], 0), (backwards, ids[1], half)):
        rows, factor = schedule.transfers, half // schedule.chunks_per_shard
        lo, hi = (column.astype(np.int64) * factor + first for column in (rows.lo, rows.hi))
        parts.append((rows.step, own_ids[rows.route], rows.shard, lo, hi))
    columns = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
    return allgather_from_columns(forwards, topology, max(forwards.steps, backwards.steps), 2 * half, columns)


def degree_schedule(base: Schedule, copies: int, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the network G of `base` with every node copied `copies` times.

    When `base` sends a shard from u to w, copy j of u sends the shard of copy j of the shard's origin to all copies of
    w. In an additional step, every node collects the shards of its other copies, in equal parts over its links. The
    number of chunks becomes its least common multiple with a node's number of in-links. G must have no self-loops.
    O(new rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 2.
    """
    require_expandable(base)
    rows = base.transfers
    require_size(len(rows) * copies**2 + len(topology.links) * (copies - 1), topology)
    # The links from copy j of u to copy i of w, for each link from u to w, at j * copies + i.
    links, copy = base.topology.links, np.arange(copies)
    src = (links.src[:, None] * np.int64(copies) + np.repeat(copy, copies)).ravel()
    dst = (links.dst[:, None] * np.int64(copies) + np.tile(copy, copies)).ravel()
    classes = (np.repeat(column, copies**2) for column in (links.bandwidth_class, links.latency_class))
    ids = link_ids(src, dst, *classes).reshape(len(links), copies**2)
    # The transfers of the last step, in which link number `turn` of a node is one of its `parts` links.
    last_links, first_in = topology.links, topology.links.incoming_offsets(topology.node_count)
    last, turn = repeat_rows(np.full(len(last_links), copies - 1))
    receiver = last_links.dst[last]
    own_copy, parts = receiver % copies, np.diff(first_in)[receiver]
    last_shard = receiver - own_copy + (own_copy + 1 + turn) % copies
    chunks = lcm(base.chunks_per_shard, int(np.lcm.reduce(parts))) if copies > 1 else base.chunks_per_shard
    factor, size, part = chunks // base.chunks_per_shard, chunks // parts, last - first_in[receiver]
    row = np.repeat(np.arange(len(rows)), copies**2)
    shard = (rows.shard[:, None].astype(np.int32) * copies + np.repeat(copy, copies)).ravel()
    lo, hi = (column.astype(np.int64)[row] * factor for column in (rows.lo, rows.hi))
    columns: list[Column] = [rows.step[row], ids[rows.route].ravel(), shard, lo, hi]
    final = (np.full(len(last), base.steps), last, last_shard, part * size, (part + 1) * size)
    joined = [np.concatenate(pair) for pair in zip(columns, final, strict=True)]
    return allgather_from_columns(base, topology, base.steps + (copies > 1), chunks, joined)


Ids = NDArray[np.int32]


def power_schedule(base: Schedule, times: int, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the product of `times` copies of the base's network.

    Every shard is cut into `times` parts. Part i runs `base` along dimension i, then along dimension i + 1 with
    everything gathered so far, and so on cyclically; at any time, each dimension serves one part. Steps and chunks are
    multiplied by `times`. O(new rows).
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 14.
    """
    require_expandable(base)
    nodes = base.topology.node_count
    require_size(len(base.transfers) * times * sum(nodes ** (times - 1 + stage) for stage in range(times)), topology)
    parts = list(_stages(base, times))
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return allgather_from_columns(base, topology, times * base.steps, times * base.chunks_per_shard, columns)


def _stages(base: Schedule, times: int) -> Iterator[tuple[NDArray[np.integer], ...]]:
    """Yield the columns step, route, shard, lo and hi for each part of the shards and each of its stages."""
    rows, count = base.transfers, base.topology.node_count
    rank = np.arange(count**times, dtype=np.int32).reshape([count] * times)
    # The link ids of each axis of the grid `rank`, by the factor's link and the position on the other axes.
    links, axes = base.topology.links, range(times)
    ends = [[np.take(rank, side, axis) for axis in axes] for side in (links.src, links.dst)]
    columns = [np.concatenate([grid.ravel() for grid in side]) for side in ends]
    for column in (links.bandwidth_class, links.latency_class):
        spread = [np.moveaxis(np.broadcast_to(column, (*rank.shape[1:], len(links))), -1, axis) for axis in axes]
        columns.append(np.concatenate([grid.ravel() for grid in spread]))
    by_axis = np.split(link_ids(columns[0], columns[1], columns[2], columns[3]), times)
    ids = [part.reshape(grid.shape) for part, grid in zip(by_axis, ends[0], strict=True)]
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


def line_schedule(base: Schedule, topology: Topology) -> Schedule:
    """Return the allgather on `topology`, the line graph L(G) of the network G of `base`.

    A new first step sends each node's shard to all its neighbours. Then, when `base` sends the shard of v from u to w,
    node uw sends the shards of all links into v to all out-links of w, except to the shard's own node. Chunks stay the
    same. Empty steps (only if a node has a single link) are left out. O(new rows): d^2 per row of `base` for degree d.
    Source: Zhao et al., "Efficient Direct-Connect Topologies for Collective Communications", definition 1.
    """
    require_expandable(base)
    rows, links, nodes = base.transfers, base.topology.links, np.arange(base.topology.node_count + 1)
    # The links out of node w are ranks `first_out[w]` to `first_out[w + 1] - 1` of L(G). Link e into w, followed by the
    # link of rank r, is link `first_into[r] + e - first_in[w]` of L(G).
    order = line_order(base.topology)
    rank = np.empty(len(order), dtype=np.int32)
    rank[order] = np.arange(len(order), dtype=np.int32)
    source = links.src[order]
    first_out = np.searchsorted(source, nodes).astype(np.int32)
    first_in = links.incoming_offsets(base.topology.node_count).astype(np.int32)
    fan_out, fan_in = np.diff(first_out), np.diff(first_in)
    first_into = (np.cumsum(fan_in[source]) - fan_in[source]).astype(np.int32)
    link = rows.route.astype(np.int32)
    through = links.dst[link]
    transfers = np.dot(fan_out[through].astype(np.int64), fan_in[rows.shard])
    require_size(len(topology.links) + int(transfers), topology)
    row, out_number = repeat_rows(fan_out[through])
    receiver = first_out[through][row] + out_number
    route = first_into[receiver] + (link - first_in[through])[row]
    copy, in_number = repeat_rows(fan_in[rows.shard][row])
    row, receiver, route = row[copy], receiver[copy], route[copy]
    shard = rank[first_in[rows.shard][row] + in_number]
    needed = shard != receiver
    row, route, shard = row[needed], route[needed], shard[needed]
    first = np.flatnonzero(topology.links.src != topology.links.dst)
    used = np.bincount(rows.step[row]) > 0
    later_steps, step = int(np.count_nonzero(used)), (np.cumsum(used).astype(np.int32) - 1)[rows.step[row]]
    zeros, full = np.zeros(len(first), dtype=np.int32), np.full(len(first), base.chunks_per_shard)
    parts = (
        (zeros, step + 1),
        (first, route),
        (topology.links.src[first], shard),
        (zeros, rows.lo[row]),
        (full, rows.hi[row]),
    )
    columns = [np.concatenate(part) for part in parts]
    return allgather_from_columns(base, topology, 1 + later_steps, base.chunks_per_shard, columns)
