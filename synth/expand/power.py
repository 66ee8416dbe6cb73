"""The schedule of a Cartesian power from that of its factor."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from chorale.synth.expand.columns import allgather_from_columns, require_expandable, require_size
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import link_ids
from chorale.synth.topology.topology import Topology

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
    ids = _link_ids(base.topology, rank)
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


def _link_ids(network: Topology, rank: Ids) -> list[Ids]:
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
