"""Schedule transformations: time reversal, concatenation, node renaming, and splitting for pipelines.

A reversed allgather is a reduce_scatter, and a reduce_scatter followed by an allgather is an allreduce. Splitting
transfers into smaller pieces lets trees forward one piece while the next one arrives.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.schedule import AnySchedule, ColumnBounds, Kind, Routes, Schedule
from chorale.synth.topology.topology import Topology, link_ids


def reverse_allgather(gather: Schedule, topology: Topology, original_link: np.ndarray) -> Schedule:
    """Return the reduce_scatter (or reduce) on `topology` that runs the allgather (or broadcast) `gather` backwards.

    `gather` must be on the transpose of `topology`; link l of the transpose is `original_link[l]` of `topology`. If
    `gather` copies a chunk from w to u in step t of T, the result reduces it from u to w in step T - 1 - t. The tree
    that spreads a shard becomes the tree that collects its sum, so times and loads are the same (Zhao et al., full
    paper, corollary 1.1).
    """
    transfers = gather.transfers
    if gather.routes.is_direct(len(topology.links)):
        routes = Routes.direct(len(topology.links))
        route = original_link[transfers.route]
    else:
        routes, route = reversed_routes(gather.routes, original_link), transfers.route
    is_rooted = gather.collective.is_rooted
    collective = Collective(CollectiveName.REDUCE, gather.collective.root) if is_rooted else REDUCE_SCATTER
    if gather.collective.sizes is not None:
        collective = uneven_collective(CollectiveName.REDUCE_SCATTERV, gather.collective.sizes)
    backwards = slice(None, None, -1)
    bounds = ColumnBounds(gather.steps, len(routes), topology.compute_count, gather.chunks_per_shard)
    step = gather.steps - 1 - transfers.step.astype(np.int64)
    columns = (step, route, transfers.shard, transfers.lo, transfers.hi, np.ones(len(step), dtype=np.uint8))
    reversed_transfers = bounds.pack([column[backwards] for column in columns])
    return Schedule(
        topology, collective, gather.kind, gather.steps, gather.chunks_per_shard, reversed_transfers, routes,
        gather.method, gather.parameters, reversed_certificate(gather.certificate), gather.trees_per_root,
        tuple(gather.steps - barrier for barrier in reversed(gather.barriers)),
    )  # fmt: skip


def concatenate(scatter: Schedule, gather: Schedule) -> Schedule:
    """Return the allreduce that runs the reduce_scatter `scatter` and then the allgather `gather`.

    Both must be on the same topology. The result's chunks per shard are the least common multiple of both numbers. If
    both schedules are pipelined, so is the result, with a barrier between them.
    """
    chunks = lcm(scatter.chunks_per_shard, gather.chunks_per_shard)
    link_count = len(gather.topology.links)
    shared_routes = scatter.routes.is_direct(link_count) and gather.routes.is_direct(link_count)
    routes = scatter.routes if shared_routes else joined_routes(scatter.routes, gather.routes)
    steps = scatter.steps + gather.steps
    bounds = ColumnBounds(steps, len(routes), scatter.shard_count, chunks)
    parts = []
    for part, first_step, first_route in (
        (scatter, 0, 0),
        (gather, scatter.steps, 0 if shared_routes else len(scatter.routes)),
    ):
        factor = chunks // part.chunks_per_shard
        rows = part.transfers
        step = rows.step.astype(np.int64) + first_step
        route = rows.route.astype(np.int64) + first_route
        lo, hi = rows.lo.astype(np.int64) * factor, rows.hi.astype(np.int64) * factor
        parts.append(bounds.pack((step, route, rows.shard, lo, hi, rows.reduce)).columns)
    columns = [np.concatenate(pair) for pair in zip(*parts, strict=True)]
    certificate = joined_certificate(scatter.certificate, gather.certificate)
    kind: Kind = "stepped" if scatter.kind == gather.kind == "stepped" else "pipelined"
    ends = {scatter.steps}  # where streams end; each step of a stepped part is a stream
    for part, first_step in ((scatter, 0), (gather, scatter.steps)):
        inner = range(1, part.steps) if part.kind == "stepped" else part.barriers
        ends.update(first_step + step for step in inner)
    barriers = () if kind == "stepped" else tuple(sorted(ends - {0, steps}))
    trees = gather.trees_per_root if gather.trees_per_root == scatter.trees_per_root else None
    return Schedule(
        gather.topology, ALLREDUCE, kind, steps, chunks, bounds.pack(columns), routes,
        gather.method, gather.parameters, certificate, trees, barriers,
    )  # fmt: skip


def reversed_routes(routes: Routes, original_link: np.ndarray) -> Routes:
    """Return the reversed routes: each route's links in reverse order, mapped by `original_link`. O(hops)."""
    offsets = routes.offsets
    mirror = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets)) - np.arange(offsets[-1])
    return Routes(offsets, original_link[routes.link_ids[mirror]].astype(np.int32))


def joined_routes(first: Routes, second: Routes) -> Routes:
    offsets = np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]])
    return Routes(offsets, np.concatenate([first.link_ids, second.link_ids]))


def reversed_certificate(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "reversed", "of": certificate} if certificate else {}


def joined_certificate(scatter: Mapping[str, Any], gather: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "concatenation", "parts": [scatter, gather]}


def renamed_schedule(schedule: AnySchedule, new_node: NDArray[np.integer], topology: Topology) -> Schedule:
    """Return the expanded `schedule` on `topology`, which is the same network with node v renamed to `new_node[v]`.

    Steps, chunks and costs do not change. The certificate is dropped, because it contains old node numbers. The caller
    must ensure that the networks are the same (`chorale.synth.topology.automorphism.carries`). O(rows + L log L).
    """
    old = schedule.expand()
    links, rows = old.topology.links, old.transfers
    ids = link_ids(new_node[links.src], new_node[links.dst], links.bandwidth_class, links.latency_class)
    is_direct = old.routes.is_direct(len(links))  # then route r remains link r
    routes = old.routes if is_direct else Routes(old.routes.offsets, ids[old.routes.link_ids])
    route = ids[rows.route] if is_direct else rows.route
    columns = (rows.step, route, _new_shards(old, new_node, rows.shard), rows.lo, rows.hi, rows.reduce)
    root, sizes = old.collective.root, old.collective.sizes
    if sizes is not None:
        order = np.argsort(_new_shards(old, new_node, np.arange(len(sizes))))
        sizes = tuple(sizes[shard] for shard in order.tolist())
    return replace(
        old,
        topology=topology,
        collective=replace(old.collective, root=None if root is None else int(new_node[root]), sizes=sizes),
        transfers=old.bounds.pack(columns),
        routes=routes,
        certificate={},
    )


def _new_shards(schedule: Schedule, new_node: NDArray[np.integer], shard: NDArray[np.integer]) -> NDArray[np.integer]:
    ranks = schedule.topology.compute_count
    if not schedule.collective.is_alltoall:
        return shard if schedule.collective.is_rooted else new_node[shard]
    source, target = np.divmod(shard.astype(np.int64), ranks)
    return new_node[source].astype(np.int64) * ranks + new_node[target]


MAX_PIPELINE_PARTS = 1024


def pipeline_split(schedule: Schedule, parts: int) -> Schedule:
    """Return `schedule` with every transfer split into `parts` equal transfers, which are sent one after the other.

    Loads and steps do not change. A tree with one transfer per edge becomes a pipeline of `parts` pieces. Raises
    InvalidInput unless `parts` is between 1 and `MAX_PIPELINE_PARTS`. O(rows of the result).
    """
    if not 1 <= parts <= MAX_PIPELINE_PARTS:
        raise InvalidInput(
            f"a schedule is cut into 1 to {MAX_PIPELINE_PARTS} parts", parts, "choose a number in this range"
        )
    rows = schedule.transfers
    length = rows.hi.astype(np.int64) - rows.lo
    step, route, shard, lo, reduce = (
        np.repeat(column.astype(np.int64), parts)
        for column in (rows.step, rows.route, rows.shard, rows.lo, rows.reduce)
    )
    lengths = np.repeat(length, parts)
    first = lo * parts + lengths * np.tile(np.arange(parts), len(rows))
    sizes = schedule.collective.sizes
    deeper = replace(
        schedule,
        collective=replace(schedule.collective, sizes=None if sizes is None else tuple(size * parts for size in sizes)),
        chunks_per_shard=schedule.chunks_per_shard * parts,
        parameters={**schedule.parameters, "depth": parts},
    )
    return replace(deeper, transfers=deeper.bounds.pack((step, route, shard, first, first + lengths, reduce)))
