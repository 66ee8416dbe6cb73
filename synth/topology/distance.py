"""Hop distances and strong connection of a topology."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from chorale.synth.compiled import compiled
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

Distances = NDArray[np.uint16] | NDArray[np.uint32]
"""Hops; uint32 only for networks of 65535 nodes or more."""


def hop_distances(topology: Topology) -> Distances:
    """Return uint16[N, N] over all nodes, switches too: entry [u, v] is the number of links from v to u.

    Breadth-first search over incoming links from every u. O(N L) time, 2 N^2 bytes. Raises InvalidInput for a
    network that is not strongly connected.
    """
    return distances_to(topology, np.arange(topology.node_count))


def distances_to(topology: Topology, targets: NDArray[np.integer]) -> Distances:
    """Return hops[targets, N]: entry [i, v] is the number of links from node v to `targets[i]`."""
    return hops_along(topology, arcs_backward(topology), targets)


def distances_from(topology: Topology, sources: NDArray[np.integer]) -> Distances:
    """Return hops[sources, N]: entry [i, v] is the number of links from `sources[i]` to node v."""
    return hops_along(topology, arcs_forward(topology), sources)


def require_strongly_connected(topology: Topology) -> None:
    """Raise InvalidInput, naming two nodes without a path, unless every node (switches too) reaches every other.

    O(nodes + links).
    """
    forward = _adjacency(topology)
    count, _ = connected_components(forward, directed=True, connection="strong")
    if count == 1:
        return
    source, target = 0, _first_unreached(forward)
    if target < 0:
        source, target = _first_unreached(csr_array(forward.T)), 0
    names = f"no path from {topology.node_ids[source]} to {topology.node_ids[target]} in {topology.spec}"
    raise InvalidInput("every node must have a path to every other", names, "add links or remove the node")


def _adjacency(topology: Topology) -> csr_array:
    """Return the sparse matrix with a non-zero at (src, dst) of every link. O(nodes + links)."""
    links = topology.links
    shape = (topology.node_count, topology.node_count)
    return csr_array((np.ones(len(links), dtype=np.int32), (links.src, links.dst)), shape=shape)


def _first_unreached(forward: csr_array) -> int:
    """Return the first node without a path from node 0, -1 if there is none."""
    reached = np.zeros(forward.shape[0], dtype=bool)
    reached[breadth_first_order(forward, 0, return_predecessors=False)] = True
    return -1 if reached.all() else int(np.argmin(reached))


Arcs = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Offsets and neighbours: `neighbours[offsets[v] : offsets[v + 1]]` are one link away from node v."""


def arcs_backward(topology: Topology) -> Arcs:
    """Return the arcs along which `hops_along` counts hops to its starts."""
    return topology.links.incoming_offsets(topology.node_count), topology.links.src


def arcs_forward(topology: Topology) -> Arcs:
    """Return the arcs along which `hops_along` counts hops from its starts. O(L log L)."""
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    offsets = np.searchsorted(links.src[order], np.arange(topology.node_count + 1)).astype(np.int64)
    return offsets, links.dst[order]


def hops_between_all(offsets: NDArray[np.int64], neighbours: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Return uint16[N, N]: hops along these arcs from every node (by row), 65535 to what it does not reach.

    Fewer than 65535 nodes. O(N * links).
    """
    nodes = len(offsets) - 1
    unreached = np.uint16(np.iinfo(np.uint16).max)
    distances = np.full((nodes, nodes), unreached, dtype=np.uint16)
    _search(offsets, neighbours, np.arange(nodes), unreached, distances)
    return distances


def hops_along(topology: Topology, arcs: Arcs, starts: NDArray[np.integer]) -> Distances:
    """Return hops[starts, N]: entry [i, v] is the number of `arcs` from `starts[i]` to node v. O(starts * links)."""
    hops_type = np.uint16 if topology.node_count < 2**16 else np.uint32
    unreached = hops_type(np.iinfo(hops_type).max)
    distances = np.full((len(starts), topology.node_count), unreached, dtype=hops_type)
    _search(*arcs, np.asarray(starts, dtype=np.int64), unreached, distances)
    if np.any(distances == unreached):
        require_strongly_connected(topology)
    return distances


@compiled
def _search(
    offsets: NDArray[np.int64],
    neighbours: NDArray[np.int32],
    starts: NDArray[np.int64],
    unreached: np.unsignedinteger,
    distances: Distances,
) -> None:
    """Fill `distances[i]`, all `unreached` before, with the hops from `starts[i]` to what it reaches."""
    queue = np.empty(distances.shape[1], dtype=np.int32)
    for row in range(len(starts)):
        queue[0] = starts[row]
        distances[row, starts[row]] = 0
        head, tail = 0, 1
        while head < tail:
            node = queue[head]
            head += 1
            hops = distances[row, node] + 1
            for position in range(offsets[node], offsets[node + 1]):
                neighbour = neighbours[position]
                if distances[row, neighbour] == unreached:
                    distances[row, neighbour] = hops
                    queue[tail] = neighbour
                    tail += 1
