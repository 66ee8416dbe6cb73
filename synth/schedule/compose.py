"""Schedules from schedules: time reversal turns gathering into reducing, concatenation makes allreduce."""

from __future__ import annotations

from collections.abc import Mapping
from math import lcm
from typing import Any

import numpy as np

from synth.collective import ALLREDUCE, REDUCE_SCATTER
from synth.schedule.routes import Routes
from synth.schedule.schedule import Schedule
from synth.schedule.transfers import ColumnBounds
from synth.topology.topology import Topology


def reverse_allgather(gather: Schedule, topology: Topology, original_link: np.ndarray) -> Schedule:
    """Return the reduce_scatter on `topology` that runs `gather` backwards in time.

    `gather` is an allgather on the transpose of `topology`; `original_link[l]` is the link of `topology` that
    link l of the transpose came from. What gather copies from w to u in step t, the result reduces from u to w
    in step T - 1 - t: the tree along which a shard spreads becomes the tree along which its sum gathers, so
    times and loads are the same (full paper, corollary 1.1).
    """
    transfers = gather.transfers
    paths = (original_link[gather.routes.path(route)[::-1]] for route in range(len(gather.routes)))
    if gather.routes.is_direct:
        routes = Routes.direct(len(topology.links))
        route = original_link[transfers.route]
    else:
        routes, route = Routes.of_paths(paths), transfers.route
    backwards = slice(None, None, -1)
    bounds = ColumnBounds(gather.steps, len(routes), topology.compute_count, gather.chunks_per_shard)
    step = gather.steps - 1 - transfers.step.astype(np.int64)
    columns = (step, route, transfers.shard, transfers.lo, transfers.hi, np.ones(len(step), dtype=np.uint8))
    reversed_transfers = bounds.pack([column[backwards] for column in columns])
    return Schedule(
        topology, REDUCE_SCATTER, gather.kind, gather.steps, gather.chunks_per_shard, reversed_transfers, routes,
        gather.method, gather.parameters, _reversed_certificate(gather.certificate), gather.trees_per_root,
    )  # fmt: skip


def concatenate(scatter: Schedule, gather: Schedule) -> Schedule:
    """Return the allreduce that runs the reduce_scatter `scatter` and then the allgather `gather`.

    Both are stepped schedules on the same topology. Chunks are cut to the least common multiple of both.
    """
    chunks = lcm(scatter.chunks_per_shard, gather.chunks_per_shard)
    shared_routes = scatter.routes.is_direct and gather.routes.is_direct
    routes = scatter.routes if shared_routes else _joined(scatter.routes, gather.routes)
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
    certificate = {"kind": "concatenation", "parts": [scatter.certificate, gather.certificate]}
    return Schedule(
        gather.topology, ALLREDUCE, "stepped", steps, chunks, bounds.pack(columns), routes,
        gather.method, gather.parameters, certificate,
    )  # fmt: skip


def _joined(first: Routes, second: Routes) -> Routes:
    offsets = np.concatenate([first.offsets, second.offsets[1:] + first.offsets[-1]])
    return Routes(offsets, np.concatenate([first.link_ids, second.link_ids]))


def _reversed_certificate(certificate: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"kind": "reversed", "of": certificate} if certificate else {}
