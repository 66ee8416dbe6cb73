"""Schedules written down plainly: breadth-first trees that stream, and an alltoall that hops from rank to rank."""

from collections.abc import Iterator

import numpy as np

from chorale.synth.collective import ALLGATHER, ALLREDUCE, ALLTOALL, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.schedule.schedule import ColumnBounds, Kind, Routes, Schedule
from chorale.synth.topology.spec import parse_topology
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify

Row = tuple[int, int, int, int, int, int]
"""Step, link, shard, low, high, reduces."""
Edge = tuple[int, int, int]
"""Depth, link, and the link back."""


def breadth_first_tree(topology: Topology, root: int, turn: int) -> list[Edge]:
    """Return the edges of a tree from `root` along links; `turn` picks one of several parents."""
    links = list(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    depth, edges, level = {root: 0}, [], 0
    while len(depth) < topology.compute_count:
        order = [(number + turn) % len(links) for number in range(len(links))]
        for link in order:
            src, dst = links[link]
            if depth.get(src) == level and dst not in depth:
                depth[dst] = level + 1
                edges.append((level, link, links.index((dst, src))))
        level += 1
    return edges


def trees(spec: str, collective: Collective, kind: Kind = "pipelined") -> VerifiedSchedule:
    """Return the verified schedule of two chunks per shard, each along a tree of its own: down from the root of the
    shard, up to it, or both. In a broadcast and a reduce, shards take different trees."""
    topology = parse_topology(spec)
    rows: list[Row] = []
    height = 0
    for shard in range(topology.compute_count):
        for chunk in range(2):
            root = shard if collective.root is None else collective.root
            edges = breadth_first_tree(topology, root, 5 * chunk + 3 * shard)
            height = max(height, 1 + max(depth for depth, _, _ in edges))
            rows += _rows(collective, edges, shard, chunk)
    ups = collective.name in (ALLREDUCE.name, REDUCE_SCATTER.name, CollectiveName.REDUCE)
    downs = collective.name in (ALLREDUCE.name, ALLGATHER.name, CollectiveName.BROADCAST)
    steps = height * (ups + downs)
    rows = [((height - 1 - row[0]) if row[5] else row[0] + height * ups, *row[1:]) for row in rows]
    return _verified(topology, collective, kind, steps, 2, Routes.direct(len(topology.links)), rows)


def _rows(collective: Collective, edges: list[Edge], shard: int, chunk: int) -> Iterator[Row]:
    for depth, link, back in edges:
        if collective.reduces:
            yield depth, back, shard, chunk, chunk + 1, 1
        if collective.name in (ALLREDUCE.name, ALLGATHER.name, CollectiveName.BROADCAST):
            yield depth, link, shard, chunk, chunk + 1, 0


def hopping_alltoall(spec: str, wait: int = 0) -> VerifiedSchedule:
    """Return an alltoall along breadth-first trees, a hop a step; shard s of rank r starts `wait` * (s + r) late."""
    topology = parse_topology(spec)
    ranks = topology.compute_count
    rows: list[Row] = []
    for source in range(ranks):
        entering = {int(topology.links.dst[link]): link for _, link, _ in breadth_first_tree(topology, source, source)}
        for target in range(ranks):
            path, node = [], target
            while node != source:
                path.insert(0, entering[node])
                node = int(topology.links.src[entering[node]])
            begin = wait * (source + target)
            rows += [(begin + hop, link, source * ranks + target, 0, 1, 0) for hop, link in enumerate(path)]
    steps = 1 + max(row[0] for row in rows)
    return _verified(topology, ALLTOALL, "stepped", steps, 1, Routes.direct(len(topology.links)), rows)


def _verified(
    topology: Topology, collective: Collective, kind: Kind, steps: int, chunks: int, routes: Routes, rows: list[Row]
) -> VerifiedSchedule:
    shards = topology.compute_count ** (2 if collective == ALLTOALL else 1)
    bounds = ColumnBounds(steps, len(routes), shards, chunks)
    columns = [np.array(column) for column in zip(*sorted(rows), strict=True)]
    return verify(Schedule(topology, collective, kind, steps, chunks, bounds.pack(columns), routes, "plain", {}))
