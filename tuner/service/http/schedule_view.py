"""What a page needs to draw a schedule: positions of nodes, loads of links, the tree of a root."""

from __future__ import annotations

from typing import Any

import numpy as np

from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed, InvalidInput
from chorale.synth.schedule.codec import from_parquet
from chorale.synth.schedule.schedule import Schedule
from chorale.tuner.files.topology_specs import load_topology
from chorale.tuner.plots.layout import node_positions

MAX_NODES, MAX_LINKS = 512, 8192
_WAY_OUT = "take `chorale show FILE --plot` for larger ones"


def schedule_view(content: bytes, root: int) -> dict[str, Any]:
    """Return nodes with x and y, connections with their load, and the transfers that carry the shard of `root`.

    load: shards that go over the links from one node to another during the whole collective; share: the load over
    the bandwidth of these links, 1 for the busiest. CheckFailed for schedules too large to draw.
    """
    schedule = from_parquet(content, load_topology)
    topology = schedule.topology
    if topology.node_count > MAX_NODES or len(topology.links) > MAX_LINKS:
        value = f"{topology.node_count} nodes, {len(topology.links)} links"
        raise CheckFailed(f"a picture has at most {MAX_NODES} nodes and {MAX_LINKS} links", value, _WAY_OUT)
    if root >= topology.compute_count:
        rule = f"a root must be one of the ranks 0 to {topology.compute_count - 1}"
        raise InvalidInput(rule, root, "choose a rank of the network")
    positions, columns = node_positions(topology), schedule.expand()
    nodes = [
        {"id": name, "kind": topology.node_kind(node), "x": round(float(x), 4), "y": round(float(y), 4)}
        for node, (name, (x, y)) in enumerate(zip(topology.node_ids, positions, strict=True))
    ]
    return {"nodes": nodes, "connections": _connections(columns), "tree": _tree(columns, root), "root": root}


def _connections(schedule: Schedule) -> list[dict[str, Any]]:
    """Return the pairs of nodes with links, each with the total load of its links."""
    links, load = schedule.topology.links, _loads(schedule)
    pairs: dict[tuple[int, int], list[float]] = {}
    for link in range(len(links)):
        pair = (int(links.src[link]), int(links.dst[link]))
        entry = pairs.setdefault(pair, [0.0, 0.0])
        entry[0] += load[link]
        entry[1] += float(links[link].bandwidth)
    busiest = max((carried / bandwidth for carried, bandwidth in pairs.values()), default=0.0) or 1.0
    return [
        {"src": src, "dst": dst, "load": carried, "bandwidth": bandwidth, "share": carried / bandwidth / busiest}
        for (src, dst), (carried, bandwidth) in pairs.items()
    ]


def _loads(schedule: Schedule) -> list[float]:
    """Return the shards that go over every link."""
    rows, routes = schedule.transfers, schedule.routes
    amount = (rows.hi.astype(np.int64) - rows.lo.astype(np.int64)) / schedule.chunks_per_shard
    by_route = np.bincount(rows.route, weights=amount, minlength=len(routes))
    lengths = np.diff(routes.offsets)
    weights = np.repeat(by_route, lengths)
    return [float(load) for load in np.bincount(routes.link_ids, weights, minlength=len(schedule.topology.links))]


def _tree(schedule: Schedule, root: int) -> list[dict[str, int]]:
    """Return the transfers of the shard that `root` owns, by step; of alltoall those of all its shards."""
    rows, ranks = schedule.transfers, schedule.topology.compute_count
    shard = rows.shard // ranks if schedule.collective.name == CollectiveName.ALLTOALL else rows.shard
    chosen = np.flatnonzero(shard == root)
    src, dst = schedule.src[chosen], schedule.dst[chosen]
    return [
        {"step": int(rows.step[row]), "src": int(a), "dst": int(b)} for row, a, b in zip(chosen, src, dst, strict=True)
    ]
