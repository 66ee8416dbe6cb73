"""Describes groups of switches that are removed together, as tables for the kernel that replaces paths with arcs.

A cluster is a set of ranks that stay connected when the group is removed, for example a GPU box below a network.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.topology.topology import connected_labels

FAR = 65535
_BRIDGE = 3

Distances = NDArray[np.uint16]


def levels(network: ForestNetwork) -> Integers:
    """Return int64 per node: its hop count from the nearest rank, or the number of nodes if no rank can reach it."""
    level = np.full(network.nodes, network.nodes, dtype=np.int64)
    level[: network.compute_count] = 0
    while True:
        next_level = level.copy()
        np.minimum.at(next_level, network.dst, level[network.src] + 1)
        next_level = np.minimum(next_level, network.nodes)
        if np.array_equal(next_level, level):
            return level
        level = next_level


def fabrics(network: ForestNetwork) -> Ranks:
    """Return int32 per node: index of its connected component of switches, or -1 for ranks and unused switches."""
    ranks = network.compute_count
    between = (network.src >= ranks) & (network.dst >= ranks)
    label = connected_labels(network.nodes, network.src[between], network.dst[between])
    used = np.zeros(network.nodes, dtype=bool)
    used[network.src] = used[network.dst] = True
    used[:ranks] = False
    group = np.full(network.nodes, -1, dtype=np.int32)
    group[used] = np.unique(label[used], return_inverse=True)[1]
    return group


def clusters_below(network: ForestNetwork, fabric: Ranks, level: Integers) -> tuple[NDArray[np.int32], Integers]:
    """Return the clusters of ranks below each fabric: (int32[heights, nodes] cluster labels, each fabric's row in it).

    A fabric is a connected component of switches. Each fabric has a height, determined by its switches' largest hop
    count from a rank, then by the number of ranks with arcs into it, then by arc capacity (larger means lower).
    Similar numbers count as equal, so that a rail that lacks a rank has the same height as other rails. A cluster below
    a fabric consists of ranks that are connected by lower fabrics. Direct arcs between ranks are below every fabric.
    """
    count, switches = int(fabric.max(initial=-1)) + 1, fabric >= 0
    highest, fattest = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    np.maximum.at(highest, fabric[switches], level[switches])
    entering = (fabric[network.src] < 0) & (fabric[network.dst] >= 0)
    reached = np.unique(fabric[network.dst[entering]].astype(np.int64) * network.nodes + network.src[entering])
    ranks = np.bincount(reached // network.nodes, minlength=count)
    np.maximum.at(fattest, fabric[network.dst[entering]], network.capacity[entering])
    sizes, widths = _magnitudes(ranks), _magnitudes(fattest)
    heights = [(int(highest[one]), sizes[int(ranks[one])], -widths[int(fattest[one])]) for one in range(count)]
    distinct = sorted(set(heights))
    row_of = np.array([distinct.index(height) for height in heights], dtype=np.int64)
    rows = np.empty((len(distinct), network.nodes), dtype=np.int32)
    of_arc = np.maximum(fabric[network.src], fabric[network.dst])
    arc_row = np.where(of_arc < 0, -1, row_of[of_arc])
    for row in range(len(distinct)):
        usable = arc_row < row
        rows[row] = connected_labels(network.nodes, network.src[usable], network.dst[usable])
    return rows, row_of


def _magnitudes(values: Integers) -> dict[int, int]:
    """Group similar values: map each value to a class, in which the largest value is at most 3/2 times the smallest."""
    magnitudes: dict[int, int] = {}
    smallest, number = 0, -1
    for value in np.unique(values).tolist():
        if number < 0 or 2 * value > 3 * smallest:
            smallest, number = value, number + 1
        magnitudes[value] = number
    return magnitudes


class SwitchGroups(NamedTuple):
    """Tables that describe disjoint groups of switches. There are no arcs between groups.

    A cluster is a set of ranks that stay connected without the group. A group's ports are the nodes around it, sorted
    by cluster, then by node. Direct arcs replace a removed group, preferably between ports of different clusters.

    member_index:   int64 per node: index of a switch inside its group
    sizes:          int64 per group: number of switches
    table_offsets:  int64 per group: position in `distance` at which its table begins
    distance:       uint16, a table [size, size] for each group: length of a shortest path between two switches
    turn:           int64 per group: how many earlier groups have the same ports
    port_offsets:   int64[groups + 1]: first port of each group
    cluster_of:     int64 per port: index of its cluster, counted over all groups
    group_clusters: int64[groups + 1]: first cluster of each group
    cluster_ports:  int64[clusters + 1]: first port of each cluster
    entry_offsets, entries: for each port, the arcs from it into the group
    exit_offsets, exits:    for each port, the arcs from the group to it
    inner_offsets, inner:   for each switch, the arcs from it to other switches of its group
    length:         int64 per arc of the network: its length, or 0 outside groups
    """

    member_index: Integers
    sizes: Integers
    table_offsets: Integers
    distance: Distances
    turn: Integers
    port_offsets: Integers
    cluster_of: Integers
    group_clusters: Integers
    cluster_ports: Integers
    entry_offsets: Integers
    entries: Integers
    exit_offsets: Integers
    exits: Integers
    inner_offsets: Integers
    inner: Integers
    length: Integers


def switch_groups_of(
    network: ForestNetwork, group: Ranks, clusters: NDArray[np.integer], row_of: NDArray[np.integer]
) -> SwitchGroups:
    """Compute the tables for groups of switches. O(arcs log arcs), plus the time of `spreading_lengths` for each group.

    group:    int32 per node: index of a switch's group, -1 for all other nodes
    clusters: [rows, nodes]: labels of clusters; group g uses row `row_of[g]`
    """
    count = int(group.max(initial=-1)) + 1
    src_group, dst_group = group[network.src], group[network.dst]
    inside = (src_group == dst_group) & (src_group >= 0)
    entries, exits = np.flatnonzero((dst_group >= 0) & ~inside), np.flatnonzero((src_group >= 0) & ~inside)
    of_group = np.concatenate([dst_group[entries], src_group[exits]]).astype(np.int64)
    around = np.concatenate([network.src[entries], network.dst[exits]])
    label = clusters[row_of[of_group], around]
    ports, port_of = np.unique(np.stack([of_group, label, around], axis=1), axis=0, return_inverse=True)
    distinct, cluster_of = np.unique(ports[:, :2], axis=0, return_inverse=True)
    members = np.flatnonzero(group >= 0)
    first, ordered = _rows(group[members], members, count)
    place, sizes = np.zeros(len(group), dtype=np.int64), np.diff(first)
    place[ordered] = np.arange(len(ordered)) - np.repeat(first[:-1], sizes)
    arcs = np.flatnonzero(inside)
    first, inner = _rows(src_group[arcs], arcs, count)
    length, tables = np.zeros(len(network.src), dtype=np.int64), []
    for index, size in enumerate(sizes.tolist()):
        own = inner[first[index] : first[index + 1]]
        length[own], table = spreading_lengths(size, place[network.src[own]], place[network.dst[own]])
        tables.append(table)
    offsets = np.searchsorted(ports[:, 0], np.arange(count + 1))
    seen: dict[bytes, int] = {}
    turn = np.zeros(count, dtype=np.int64)
    for index in range(count):
        key = ports[offsets[index] : offsets[index + 1], 2].tobytes()
        turn[index] = seen.get(key, 0)
        seen[key] = int(turn[index]) + 1
    return SwitchGroups(
        place,
        sizes,
        (np.cumsum(sizes**2) - sizes**2).astype(np.int64),
        np.concatenate([table.ravel() for table in tables] or [np.zeros(0, dtype=np.uint16)]),
        turn,
        np.searchsorted(ports[:, 0], np.arange(count + 1)).astype(np.int64),
        cluster_of.ravel().astype(np.int64),
        np.searchsorted(distinct[:, 0], np.arange(count + 1)).astype(np.int64),
        np.searchsorted(cluster_of.ravel(), np.arange(len(distinct) + 1)).astype(np.int64),
        *_rows(port_of.ravel()[: len(entries)], entries, len(ports)),
        *_rows(port_of.ravel()[len(entries) :], exits, len(ports)),
        *_rows(network.src[inside], np.flatnonzero(inside), network.nodes),
        length,
    )


def _rows(owner: NDArray[np.integer], values: NDArray[np.integer], count: int) -> tuple[Integers, Integers]:
    """Return (offsets, values), sorted by owner: the values of owner v are `values[offsets[v]:offsets[v + 1]]`."""
    order = np.argsort(owner, kind="stable")
    return np.searchsorted(owner[order], np.arange(count + 1)).astype(np.int64), values[order].astype(np.int64)


def spreading_lengths(size: int, src: Integers, dst: Integers) -> tuple[Integers, Distances]:
    """Return (length per arc, distances uint16[size, size]) inside a group of switches; `FAR` if there is no path.

    Arcs that are part of no triangle, such as the global links of a dragonfly, are longer than others. With equal
    lengths, paths over two global links would be as short as paths over one, and would overload these links. Lengths
    only affect how good the proposed paths are. O(size * arcs * log arcs).
    """
    if len(src) == 0:
        return np.zeros(0, dtype=np.int64), np.where(np.eye(size, dtype=np.bool_), 0, FAR).astype(np.uint16)
    arcs = sparse.csr_array((np.ones(len(src), dtype=np.int64), (src, dst)), shape=(size, size))
    beside = np.asarray((arcs @ arcs).todense())[src, dst] > 0
    length = np.where(beside, 1, _BRIDGE)
    distance = csgraph.shortest_path(sparse.csr_array((length.astype(np.float64), (src, dst)), shape=(size, size)))
    return length, np.minimum(distance, FAR).astype(np.uint16)
