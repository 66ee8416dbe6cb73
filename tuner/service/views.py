"""Computes slow responses, namely pictures and registered versions. The service calls this code in other processes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth import CheckFailed, InvalidInput, Topology, traffic_of
from chorale.synth.collective import CollectiveName
from chorale.synth.schedule.codec import from_parquet
from chorale.tuner import Home, MlflowStore, load_best, load_topology
from chorale.tuner.plots.layout import node_positions
from chorale.tuner.reports.synthesis import able_text, describe_topology
from chorale.tuner.service.jobs.job_specs import JobLimits, NetworkSource, built_network
from chorale.tuner.trials.records import SizeClass

MAX_NODES, MAX_LINKS = 512, 8192
_WAY_OUT = "take `chorale topology show` or `chorale show FILE` with `--plot` for larger ones"
MAX_STEP_ENTRIES = 60_000
"""Maximum number of (connection, load) pairs in all steps. With more, the page draws only the complete collective."""


def connections_of(topology: Topology) -> tuple[list[dict[str, Any]], NDArray[np.int64]]:
    """Return the connections (ordered pairs of linked nodes) as JSON objects, and for each link the index of its
    connection.

    Parallel links are combined into one connection with their total bandwidth. O(links log links).
    """
    links, nodes = topology.links, topology.node_count
    pairs, of_link = np.unique(links.src.astype(np.int64) * nodes + links.dst, return_inverse=True)
    bandwidth = np.bincount(of_link, weights=[float(link.bandwidth) for link in links])
    ends = zip(pairs.tolist(), bandwidth.tolist(), strict=True)
    return [{"src": end // nodes, "dst": end % nodes, "bandwidth": rate} for end, rate in ends], of_link


def nodes_view(topology: Topology) -> list[dict[str, Any]]:
    """Return the nodes with kinds, positions and, for switches that can multicast or reduce data, their abilities.

    Raises CheckFailed if the network is too large to draw.
    """
    if topology.node_count > MAX_NODES or len(topology.links) > MAX_LINKS:
        value = f"{topology.node_count} nodes, {len(topology.links)} links"
        raise CheckFailed(f"a picture has at most {MAX_NODES} nodes and {MAX_LINKS} links", value, _WAY_OUT)
    places = zip(topology.node_ids, node_positions(topology), strict=True)
    nodes = []
    for node, (name, (x, y)) in enumerate(places):
        ability = topology.abilities.get(node)
        able = {} if ability is None else {"able": able_text(ability, topology)}
        kind = topology.node_kind(node)
        nodes.append({"id": name, "kind": kind, "x": round(float(x), 4), "y": round(float(y), 4), **able})
    return nodes


def topology_view(source: NetworkSource, limits: JobLimits) -> dict[str, Any]:
    """Return a description of a network, and the data for drawing it or the reason why it is too large to draw.

    Raises InvalidInput if the network is not valid or exceeds `limits`.
    """
    topology = built_network(source, limits)
    document: dict[str, Any] = {"topology": describe_topology(topology), "unit": topology.bandwidth_unit}
    try:
        picture = {"nodes": nodes_view(topology), "connections": connections_of(topology)[0]}
    except CheckFailed as error:
        return document | {"picture": None, "why": str(error)}
    return document | {"picture": picture, "why": None}


def schedule_view(content: bytes, root: int) -> dict[str, Any]:
    """Return the data for drawing the schedule file `content`: nodes with positions, connections, `steps` and `tree`.

    load:  number of shards that cross a connection's links during the whole collective
    share: a connection's load divided by its bandwidth, relative to the busiest connection
    steps: for each step (for trees: each level), pairs (index of a connection, load); null if there are too many
    tree:  links that carry the shard of `root`, each with its step and its hop on the route

    Raises CheckFailed if the schedule is too large to draw.
    """
    schedule = from_parquet(content, load_topology)
    topology = schedule.topology
    nodes = nodes_view(topology)
    if root >= topology.compute_count:
        rule = f"a root must be one of the ranks 0 to {topology.compute_count - 1}"
        raise InvalidInput(rule, root, "choose a rank of the network")
    columns, (connections, of_link) = schedule.expand(), connections_of(topology)
    traffic = traffic_of(schedule)
    shards = traffic.topology.compute_count / traffic.denominator
    width = len(connections)
    by_step = [
        np.bincount(of_link, traffic.link_amounts(step) * shards, minlength=width).astype(np.float64)
        for step in traffic.steps
    ]
    total = np.sum(by_step, axis=0) if by_step else np.zeros(width)
    busy = total / np.array([row["bandwidth"] for row in connections])
    shares = (busy / (busy.max(initial=0.0) or 1.0)).tolist()
    entries = sum(np.count_nonzero(loads) for loads in by_step)
    steps = [[(int(row), round(float(loads[row]), 6)) for row in np.flatnonzero(loads)] for loads in by_step]
    rows, ranks, routes = columns.transfers, columns.topology.compute_count, columns.routes
    shard = rows.shard // ranks if columns.collective.name == CollectiveName.ALLTOALL else rows.shard
    links = columns.topology.links
    edges: dict[tuple[int, int, int, int], None] = {}
    for row in np.flatnonzero(shard == root):
        route = int(rows.route[row])
        hops = routes.link_ids[routes.offsets[route] : routes.offsets[route + 1]]
        for hop, link in enumerate(hops):
            edges[int(rows.step[row]), hop, int(links.src[link]), int(links.dst[link])] = None
    return {
        "kind": schedule.kind,
        "nodes": nodes,
        "connections": [
            row | {"load": load, "share": share}
            for row, load, share in zip(connections, total.tolist(), shares, strict=True)
        ],
        "steps": None if entries > MAX_STEP_ENTRIES else steps,
        "tree": [{"step": step, "hop": hop, "src": src, "dst": dst} for step, hop, src, dst in sorted(edges)],
        "root": root,
    }


def registered(
    home: Home, topology: Topology, collective: str, size_bytes: int, alias: str, kind: str | None
) -> dict[str, Any] | bytes:
    """Return the registered version's metadata, or its verified file if `kind` is "schedule" or "program".

    Raises CheckFailed if nothing is registered, if the verification fails, or if a file is requested but the library's
    own algorithm is registered.
    """
    entry = load_best(MlflowStore(home.mlflow_uri, home.artifacts), topology, collective, size_bytes, alias)
    if kind is not None:
        content = entry.program.schedule if kind == "schedule" else entry.program.program
        if content is None:
            value, way_out = "it is a program from a file", "request the program instead"
            raise CheckFailed("the registered version has no schedule: {}", value, way_out)
        return content
    return {
        "model": entry.version.name,
        "version": entry.version.version,
        "size_range_bytes": [entry.size_class.min_bytes, entry.size_class.max_bytes],
        "exact": entry.size_class == SizeClass.of(size_bytes),
        "library": entry.library,
        "measured": dict(entry.measured),
        "manifest": dict(entry.manifest),
    }
