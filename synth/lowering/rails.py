"""Rails: which of several networks between boxes a transfer belongs to, so that channels can tell them apart.

Runtimes choose the network port of a message by its channel. Where the ranks of a box share rails, as GPUs with
even and odd ports do, all transfers of a tree should keep to the channels of its rail.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import distinct
from chorale.synth.lowering.vector_layout import Column, expand_intervals
from chorale.synth.schedule.schedule import Schedule, Transfers

Flags = NDArray[np.bool_]


def rails_of(schedule: Schedule, transfers: Transfers) -> Column:
    """Return the rail of each of `transfers`, 0 for all where channels need not tell rails apart.

    A rail is a switch that no rank touches, and that transfers between boxes pass one of. Transfers inside a box take
    the rail on which their chunk first leaves one, or else that of their sender. O(rows + chunks moved between boxes).
    """
    rail = _rails_of_routes(schedule)[transfers.route]
    links = schedule.topology.links
    sender = schedule.routes.sources(links)[transfers.route]
    receiver = schedule.routes.destinations(links)[transfers.route]
    ports = np.zeros((schedule.topology.compute_count, 1 + int(rail.max(initial=0))), dtype=np.bool_)
    crossing = rail >= 0
    ports[sender[crossing], rail[crossing]] = True
    if ports.shape[1] == 1 or not _are_shared(ports, sender[~crossing], receiver[~crossing]):
        return np.zeros(len(rail), dtype=np.int64)
    first = _first_rails(schedule, transfers, rail)[_trees(schedule, transfers)]
    return np.where(crossing, rail, np.where(first >= 0, first, ports[sender].argmax(axis=1)))


def _are_shared(ports: Flags, sender: NDArray[np.int32], receiver: NDArray[np.int32]) -> bool:
    """Return whether two ranks of a box use the same rail; `ports` tells which rails each rank sends over, `sender` and
    `receiver` what goes on inside boxes."""
    ranks = len(ports)
    box = _parts(ranks, sender, receiver)
    users = np.zeros(ports.shape, dtype=np.int64)
    np.add.at(users, box, ports)
    return bool((users > 1).any())


def _parts(ranks: int, sender: NDArray[np.int32], receiver: NDArray[np.int32]) -> Column:
    """Return the first of the ranks that each is joined with. O(rows + pairs * log(ranks))."""
    joined = np.zeros(ranks * ranks, dtype=np.bool_)
    joined[sender.astype(np.int64) * ranks + receiver] = True
    one, other = np.divmod(np.flatnonzero(joined), ranks)
    first = np.arange(ranks)
    while (first[one] != first[other]).any():
        low, high = np.minimum(first[one], first[other]), np.maximum(first[one], first[other])
        np.minimum.at(first, high, low)
        first = first[first]
    return first


def _rails_of_routes(schedule: Schedule) -> Column:
    """Return the rail of each route, -1 for those that pass none; all -1 if one passes several."""
    links, routes = schedule.topology.links, schedule.routes
    ranks = schedule.topology.compute_count
    if not len(routes) or schedule.topology.node_count == ranks:
        return np.full(len(routes), -1, dtype=np.int64)
    touched = np.zeros(schedule.topology.node_count, dtype=np.bool_)
    touched[:ranks] = True
    touched[links.dst[links.src < ranks]] = True
    touched[links.src[links.dst < ranks]] = True
    passed = links.dst[routes.link_ids]
    starts = routes.offsets[:-1]
    node = np.maximum.reduceat(np.where(touched[passed], -1, passed), starts)
    if np.add.reduceat((~touched[passed]).astype(np.int64), starts).max() > 1:
        return np.full(len(routes), -1, dtype=np.int64)
    return np.where(node < 0, -1, np.searchsorted(distinct(node[node >= 0]), node))


def _trees(schedule: Schedule, transfers: Transfers) -> Column:
    """Number the trees by shard, first chunk, and whether they reduce."""
    chunk = transfers.shard.astype(np.int64) * schedule.chunks_per_shard + transfers.lo
    return chunk * 2 + transfers.reduce


def _first_rails(schedule: Schedule, transfers: Transfers, rail: Column) -> Column:
    """Return the rail that each tree takes first, -1 for none."""
    first = np.full(2 * schedule.shard_count * schedule.chunks_per_shard, -1, dtype=np.int64)
    crossing = np.flatnonzero(rail >= 0)
    crossing = crossing[np.argsort(transfers.step[crossing], kind="stable")[::-1]]
    some = transfers.select(crossing)
    length = some.hi.astype(np.int64) - some.lo
    row, within = expand_intervals(np.zeros(len(crossing), dtype=np.int64), length)
    first[_trees(schedule, some)[row] + 2 * within] = rail[crossing][row]
    return first
