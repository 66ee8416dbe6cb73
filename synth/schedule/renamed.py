"""A schedule under other names of the nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import AnySchedule, Schedule
from chorale.synth.topology.links import link_ids
from chorale.synth.topology.topology import Topology


def renamed_schedule(schedule: AnySchedule, new_node: NDArray[np.integer], topology: Topology) -> Schedule:
    """Return `schedule`, with the rows of all ranks, on `topology`, the same network with node v called `new_node[v]`.

    Steps, chunks and costs stay. A certificate speaks of nodes by their old names and is left out. That the
    networks are the same is not checked here (see `chorale.synth.topology.isomorphism.carries`). O(rows + L log L).
    """
    old = schedule.expand()
    links, rows = old.topology.links, old.transfers
    ids = link_ids(new_node[links.src], new_node[links.dst], links.bandwidth_class, links.latency_class)
    routes, route = _new_routes(old, ids)
    columns = (rows.step, route, _new_shards(old, new_node), rows.lo, rows.hi, rows.reduce)
    root = old.collective.root
    return replace(
        old,
        topology=topology,
        collective=replace(old.collective, root=None if root is None else int(new_node[root])),
        transfers=old.bounds.pack(columns),
        routes=routes,
        certificate={},
    )


def _new_routes(schedule: Schedule, ids: NDArray[np.int32]) -> tuple[Routes, NDArray[np.integer]]:
    """Return the table of routes, and the route of every row; links that are routes themselves stay so."""
    routes, route = schedule.routes, schedule.transfers.route
    if routes.is_direct(len(schedule.topology.links)):
        return routes, ids[route]
    return Routes(routes.offsets, ids[routes.link_ids]), route


def _new_shards(schedule: Schedule, new_node: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return the new number of the shard of every row."""
    shard, ranks = schedule.transfers.shard, schedule.topology.compute_count
    if schedule.collective.name != CollectiveName.ALLTOALL:
        return shard if schedule.collective.is_rooted else new_node[shard]
    source, target = np.divmod(shard.astype(np.int64), ranks)
    return new_node[source].astype(np.int64) * ranks + new_node[target]
