"""Schedules from schedules: time reversal turns gathering into reducing, concatenation makes allreduce."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any

import numpy as np

from chorale.synth.collective import ALLREDUCE, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import Kind, Schedule
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.topology import Topology


def reverse_allgather(gather: Schedule, topology: Topology, original_link: np.ndarray) -> Schedule:
    """Return the reduce_scatter on `topology` that runs `gather` backwards in time; of a broadcast, the reduce.

    `gather` is an allgather (or broadcast) on the transpose of `topology`; `original_link[l]` is the link of
    `topology` that link l of the transpose came from. What gather copies from w to u in step t, the result reduces
    from u to w in step T - 1 - t: the tree along which a shard spreads becomes the tree along which its sum gathers,
    so times and loads are the same (full paper, corollary 1.1).
    """
    transfers = gather.transfers
    if gather.routes.is_direct(len(topology.links)):
        routes = Routes.direct(len(topology.links))
        route = original_link[transfers.route]
    else:
        routes, route = reversed_routes(gather.routes, original_link), transfers.route
    is_rooted = gather.collective.is_rooted
    collective = Collective(CollectiveName.REDUCE, gather.collective.root) if is_rooted else REDUCE_SCATTER
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

    Both are on the same topology. Chunks are cut to the least common multiple of both. Streams stay streams, with a
    barrier between the two.
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
    ends = {*_ends_of_streams(scatter, 0), *_ends_of_streams(gather, scatter.steps)}
    barriers = () if kind == "stepped" else tuple(sorted(ends - {0, steps}))
    trees = gather.trees_per_root if gather.trees_per_root == scatter.trees_per_root else None
    return Schedule(
        gather.topology, ALLREDUCE, kind, steps, chunks, bounds.pack(columns), routes,
        gather.method, gather.parameters, certificate, trees, barriers,
    )  # fmt: skip


def _ends_of_streams(part: Schedule, first_step: int) -> list[int]:
    """Return the steps, counted from `first_step`, before which a stream of `part` has ended; steps are streams too."""
    inner = range(1, part.steps) if part.kind == "stepped" else part.barriers
    return [first_step + step for step in (*inner, part.steps)]


def reversed_routes(routes: Routes, original_link: np.ndarray) -> Routes:
    """Return every route turned around, over the links that its links came from. O(hops)."""
    offsets = routes.offsets
    mirror = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets)) - np.arange(offsets[-1])
    return Routes(offsets, original_link[routes.link_ids[mirror]].astype(np.int32))


def joined_routes(first: Routes, second: Routes) -> Routes:
    """Return the routes of `first`, then those of `second`."""
    offsets = np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]])
    return Routes(offsets, np.concatenate([first.link_ids, second.link_ids]))


def reversed_certificate(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the claim of a schedule that runs another one, with `certificate`, backwards in time."""
    return {"kind": "reversed", "of": certificate} if certificate else {}


def joined_certificate(scatter: Mapping[str, Any], gather: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the claim of a schedule of two parts."""
    return {"kind": "concatenation", "parts": [scatter, gather]}
