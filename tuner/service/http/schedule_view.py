"""What a page needs to draw a schedule: positions of nodes, loads of links step by step, the tree of a root."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.schedule.traffic import Traffic, traffic_of
from chorale.tuner.costs.pricing import DEFAULTS, Pricing, traffic_of_content
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.plots.schedule_trace import schedule_trace
from chorale.tuner.service.http.topology_view import Connections, nodes_view

MAX_STEP_ENTRIES = 60_000
"""Loads of all steps together; of more, a page draws the whole collective only."""


def schedule_view(content: bytes, root: int) -> dict[str, Any]:
    """Return nodes with x and y, connections with their load, loads by step, and the tree of the shard of `root`.

    load:  shards that go over the links from one node to another during the whole collective
    share: the load over the bandwidth of these links, 1 for the busiest
    steps: for each step (of trees: each level) pairs of a connection's number and its load; null for too many
    tree:  links that carry the shard of `root`, hop by hop through switches, with the step and the hop
    CheckFailed for schedules too large to draw.
    """
    schedule = from_parquet(content, load_topology)
    topology = schedule.topology
    nodes = nodes_view(topology)
    if root >= topology.compute_count:
        rule = f"a root must be one of the ranks 0 to {topology.compute_count - 1}"
        raise InvalidInput(rule, root, "choose a rank of the network")
    columns, connections = schedule.expand(), Connections.of(topology)
    by_step = _loads_by_step(traffic_of(schedule), connections)
    total = np.sum(by_step, axis=0) if by_step else np.zeros(len(connections.src))
    return {
        "kind": schedule.kind,
        "nodes": nodes,
        "connections": _loaded(connections, total),
        "steps": _sparse(by_step),
        "tree": _tree(columns, root),
        "root": root,
    }


def simulated_trace(content: bytes, size_bytes: int, link_gbps: float, alpha_us: float) -> str:
    """Return a simulated run of a schedule for Perfetto; see `schedule_trace`.

    link_gbps: of a link, where the network has no bandwidths
    """
    pricing = Pricing.of({**DEFAULTS, "alpha_us": repr(alpha_us), "link_gbps": repr(link_gbps)}, None)
    priced = traffic_of_content(content, pricing)
    return schedule_trace(priced.traffic, pricing.network(priced.traffic.topology), size_bytes)


def _loads_by_step(traffic: Traffic, connections: Connections) -> list[NDArray[np.float64]]:
    """Return for every step the shards that go over each connection."""
    shards = traffic.topology.compute_count / traffic.denominator
    width = len(connections.src)
    return [
        np.bincount(connections.of_link, traffic.link_amounts(step) * shards, minlength=width).astype(np.float64)
        for step in traffic.steps
    ]


def _loaded(connections: Connections, load: NDArray[np.float64]) -> list[dict[str, Any]]:
    busy = load / connections.bandwidth
    share = busy / (busy.max(initial=0.0) or 1.0)
    columns = zip(connections.rows(), load.tolist(), share.tolist(), strict=True)
    return [row | {"load": carried, "share": part} for row, carried, part in columns]


def _sparse(by_step: list[NDArray[np.float64]]) -> list[list[tuple[int, float]]] | None:
    if sum(np.count_nonzero(loads) for loads in by_step) > MAX_STEP_ENTRIES:
        return None
    return [[(int(row), round(float(loads[row]), 6)) for row in np.flatnonzero(loads)] for loads in by_step]


def _tree(schedule: Schedule, root: int) -> list[dict[str, int]]:
    """Return the links that carry the shard that `root` owns, each once per step; of alltoall those of all its
    shards."""
    rows, ranks, routes = schedule.transfers, schedule.topology.compute_count, schedule.routes
    shard = rows.shard // ranks if schedule.collective.name == CollectiveName.ALLTOALL else rows.shard
    links = schedule.topology.links
    edges: dict[tuple[int, int, int, int], None] = {}
    for row in np.flatnonzero(shard == root):
        route = int(rows.route[row])
        hops = routes.link_ids[routes.offsets[route] : routes.offsets[route + 1]]
        for hop, link in enumerate(hops):
            edges[int(rows.step[row]), hop, int(links.src[link]), int(links.dst[link])] = None
    return [{"step": step, "hop": hop, "src": src, "dst": dst} for step, hop, src, dst in sorted(edges)]
