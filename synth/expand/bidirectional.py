"""The schedule of a two-way network from those of a one-way network and its transpose."""

from __future__ import annotations

from math import lcm

import numpy as np

from chorale.synth.expand.columns import Column, allgather_from_columns, require_expandable
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.links import link_ids
from chorale.synth.topology.topology import Topology


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
