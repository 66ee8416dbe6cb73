"""The paths that the data of a rank take over the network, read back from the rows of a schedule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import distinct
from chorale.synth.schedule.schedule import Schedule, Transfers

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DataPath:
    """A path or tree that some of the data of a rank take.

    share:   the fraction of the data on this path; 1 where chunks are not distinguished
    reduces: whether its transfers add to sums, or copy
    step, route: of each of its edges, by step (in trees: by depth)
    """

    share: Fraction
    reduces: bool
    step: Indices
    route: Indices


def data_paths(schedule: Schedule, rank: int) -> tuple[DataPath, ...]:
    """Return the paths of the data of `rank` (or, where the collective has a root, of its vector): sums first.

    Trees that stream are distinguished, the largest share first; chunks that cross the same nodes at the same depths
    are one tree, so there may be fewer than `trees_per_root`. In stepped schedules and in an alltoall all chunks
    make one path, two with sums. O(rows + chunks of a shard * rows of a shard).
    """
    rows = schedule.transfers.select(np.flatnonzero(_is_of(schedule, rank)))
    streams = schedule.kind == "pipelined" and not schedule.collective.is_alltoall
    sizes = schedule.collective.sizes
    whole = schedule.chunks_per_shard if sizes is None or schedule.collective.is_alltoall else sizes[rank]
    route, counts = _one_for_each_path(schedule)[rows.route], Counter[tuple[bool, tuple[int, ...]]]()
    edge = rows.step.astype(np.int64) * len(schedule.routes) + route
    for first, last in _runs(rows) if streams else [(0, whole)]:
        covers = (rows.lo < last) & (rows.hi > first)
        for reduces in (True, False):
            if len(edges := distinct(edge[covers & (rows.reduce == reduces)])):
                counts[reduces, tuple(edges.tolist())] += last - first
    ordered = sorted(counts.items(), key=lambda path: (not path[0][0], -path[1], path[0][1]))
    return tuple(
        DataPath(Fraction(chunks, whole), reduces, *np.divmod(np.array(edges), len(schedule.routes)))
        for (reduces, edges), chunks in ordered
    )


def _is_of(schedule: Schedule, rank: int) -> NDArray[np.bool_]:
    shard = schedule.transfers.shard
    if schedule.collective.is_alltoall:
        return np.asarray(shard // schedule.topology.compute_count == rank)
    return np.asarray(shard == (0 if schedule.collective.is_rooted else rank))


def _runs(rows: Transfers) -> Iterator[tuple[int, int]]:
    """Yield the intervals of chunks that all rows treat alike."""
    borders = distinct(np.concatenate([rows.lo, rows.hi])).tolist()
    yield from pairwise(borders)


def _one_for_each_path(schedule: Schedule) -> Indices:
    """Return for each route the first one that crosses the same nodes: parallel links make no other path."""
    links, routes = schedule.topology.links, schedule.routes
    first: dict[tuple[int, ...], int] = {}
    same = np.zeros(len(routes), dtype=np.int64)
    for route in range(len(routes)):
        path = routes.path(route)
        same[route] = first.setdefault((int(links.src[path[0]]), *links.dst[path].tolist()), route)
    return same
