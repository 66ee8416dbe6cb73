"""Hop distances, diameter and strong connection of a topology."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from synth.compiled import compiled
from synth.errors import InvalidInput
from synth.topology.automorphism import known_symmetries_are_transitive
from synth.topology.topology import Topology

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
    return _searched(topology, _arcs_backward(topology), targets)


def distances_from(topology: Topology, sources: NDArray[np.integer]) -> Distances:
    """Return hops[sources, N]: entry [i, v] is the number of links from `sources[i]` to node v."""
    return _searched(topology, _arcs_forward(topology), sources)


def diameter(topology: Topology) -> int:
    """Return the largest distance in links between two compute nodes.

    One search where the known symmetries take every compute node to every other. Else searches there and back from
    chosen nodes, until the triangle inequality leaves no node that could lie farther from another than what
    was found: a handful on grids and rings, all nodes at worst. O(searches * links) time, O(nodes) memory.
    Source: Takes and Kosters, "Computing the eccentricity distribution of large graphs", for directed graphs.
    """
    forward, backward = _arcs_forward(topology), _arcs_backward(topology)
    largest = _from_one(topology, forward, 0).max()
    if known_symmetries_are_transitive(topology):
        return int(largest)
    most = np.full(topology.compute_count, np.iinfo(np.int64).max)  # bounds on how far each node's farthest node is
    least = np.zeros(topology.compute_count, dtype=np.int64)
    far = True
    while (candidates := np.flatnonzero(most > largest)).size:
        node = candidates[np.argmax(most[candidates])] if far else candidates[np.argmin(least[candidates])]
        far = not far
        there, back = _from_one(topology, forward, node), _from_one(topology, backward, node)
        farthest = there.max()
        largest = max(largest, farthest, back.max())
        most = np.minimum(most, back + farthest)
        least = np.maximum(least, np.maximum(back, farthest - there))
        most[node] = farthest
    return int(largest)


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


def _arcs_backward(topology: Topology) -> Arcs:
    return topology.links.incoming_offsets(topology.node_count), topology.links.src


def _arcs_forward(topology: Topology) -> Arcs:
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    offsets = np.searchsorted(links.src[order], np.arange(topology.node_count + 1)).astype(np.int64)
    return offsets, links.dst[order]


def _from_one(topology: Topology, arcs: Arcs, node: int) -> NDArray[np.int64]:
    """Return int64[compute nodes]: hops along `arcs` from `node`."""
    return _searched(topology, arcs, np.array([node]))[0, : topology.compute_count].astype(np.int64)


def _searched(topology: Topology, arcs: Arcs, starts: NDArray[np.integer]) -> Distances:
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
