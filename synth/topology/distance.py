"""Hop distances, strong connectivity, and the diameter of a topology, computed without all pairwise distances."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.topology import Topology

UNREACHED = 2**16 - 1
_FAR_SEARCHES = 64
"""Number of searches after which `diameter` stops improving bounds and simply searches from all remaining nodes."""
_AT_ONCE = 256

Distances = Matrix[np.uint16] | Matrix[np.uint32]
"""Matrix of hop counts. Its type is uint32 only for networks of 65536 nodes or more."""


def hop_distances(topology: Topology) -> Distances:
    """Return the hop counts between all nodes, including switches: entry [u, v] is the number of links from v to u.

    Searches breadth-first over incoming links from every u. O(N L) time, 2 N^2 bytes. Raises InvalidInput if the
    network is not strongly connected.
    """
    return distances_to(topology, np.arange(topology.node_count))


def distances_to(topology: Topology, targets: NDArray[np.integer]) -> Distances:
    """Return hops[i, v], the number of links on a shortest path from node v to `targets[i]`."""
    return hops_along(topology, arcs_backward(topology), targets)


def distances_from(topology: Topology, sources: NDArray[np.integer]) -> Distances:
    """Return hops[i, v], the number of links on a shortest path from `sources[i]` to node v."""
    return hops_along(topology, arcs_forward(topology), sources)


def require_strongly_connected(topology: Topology) -> None:
    """Raise InvalidInput, which names two nodes, if a node cannot reach another node. O(nodes + links)."""
    source, target = 0, _first_unreached(topology, arcs_forward(topology))
    if target < 0:
        source, target = _first_unreached(topology, arcs_backward(topology)), 0
    if source < 0:
        return
    names = f"no path from {topology.node_ids[source]} to {topology.node_ids[target]} in {topology.spec}"
    raise InvalidInput("some nodes cannot reach each other: {}", names, "add links, or remove the nodes")


def _first_unreached(topology: Topology, arcs: Arcs) -> int:
    """Return the first node that node 0 cannot reach along `arcs`, or -1 if it can reach all. O(nodes + links)."""
    hops = np.full((1, topology.node_count), np.uint32(2**32 - 1))
    native.search_from(*arcs, np.zeros(1, dtype=np.int64), 2**32 - 1, hops)
    missing = np.flatnonzero(hops[0] == 2**32 - 1)
    return int(missing[0]) if len(missing) else -1


Arcs = tuple[NDArray[np.int64], NDArray[np.int32]]
"""(offsets, neighbours): nodes `neighbours[offsets[v] : offsets[v + 1]]` are one link away from node v."""


def arcs_backward(topology: Topology) -> Arcs:
    """Return all links reversed, for `hops_along` to count the hops to its start nodes."""
    return topology.links.incoming_offsets(topology.node_count), topology.links.src


def arcs_forward(topology: Topology) -> Arcs:
    """Return all links as arcs, for `hops_along` to count the hops from its start nodes. O(L log L)."""
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    offsets = np.searchsorted(links.src[order], np.arange(topology.node_count + 1)).astype(np.int64)
    return offsets, links.dst[order]


def hops_along(topology: Topology, arcs: Arcs, starts: NDArray[np.integer]) -> Distances:
    """Return hops[i, v], the number of `arcs` on a shortest path from `starts[i]` to node v. O(starts * links)."""
    hops_type = np.uint16 if topology.node_count < 2**16 else np.uint32
    unreached = hops_type(np.iinfo(hops_type).max)
    distances = np.full((len(starts), topology.node_count), unreached, dtype=hops_type)
    native.search_from(*arcs, np.asarray(starts, dtype=np.int64), int(unreached), distances)
    if np.any(distances == unreached):
        require_strongly_connected(topology)
    return distances


def diameter(topology: Topology) -> int:
    """Return the diameter: the largest distance between two compute nodes, in links.

    Nodes that the known symmetries (each checked) map to one another have the same eccentricity (distance to the
    farthest node), so only one of them is examined. Searches from and to a few nodes bound the other eccentricities by
    the triangle inequality; a handful of searches is enough on grids and rings. If the bounds leave the diameter open,
    one search starts from every remaining node: O(nodes * links) time, O(nodes) memory.
    Source: Takes and Kosters, "Computing the eccentricity distribution of large graphs", for directed graphs.
    """
    orbit = checked_orbits(topology)[: topology.compute_count]
    candidates = np.unique(orbit, return_index=True)[1]
    forward, backward = arcs_forward(topology), arcs_backward(topology)
    largest = int(_hops(topology, forward, candidates[0]).max())
    most = np.full(topology.compute_count, np.iinfo(np.int64).max)  # upper bound on each node's eccentricity
    least = np.zeros(topology.compute_count, dtype=np.int64)
    most[candidates[0]] = largest
    searches = 0
    while (candidates := candidates[most[candidates] > largest]).size:
        if searches > _FAR_SEARCHES:
            blocks = np.array_split(candidates, -(-len(candidates) // _AT_ONCE))
            ranks = topology.compute_count
            return max(largest, *(int(hops_along(topology, forward, block)[:, :ranks].max()) for block in blocks))
        far = searches % 4 == 0
        node = candidates[np.argmax(most[candidates])] if far else candidates[np.argmin(least[candidates])]
        there, back = _hops(topology, forward, node), _hops(topology, backward, node)
        searches += 2
        farthest = int(there.max())
        largest = max(largest, farthest, int(back.max()))
        most = np.minimum(most, back + farthest)
        least = np.maximum(least, np.maximum(back, farthest - there))
        most[node] = farthest
    return largest


def _hops(topology: Topology, arcs: Arcs, node: int) -> NDArray[np.int64]:
    """Return the hop count along `arcs` from `node` to each compute node, as int64[compute nodes]."""
    return hops_along(topology, arcs, np.array([node]))[0, : topology.compute_count].astype(np.int64)


def hops_between_all(offsets: NDArray[np.int64], neighbours: NDArray[np.int32]) -> NDArray[np.uint16]:
    """Return the hop count from each node u to each node v as uint16[N, N]; 65535 means that there is no path.

    Nodes `neighbours[offsets[v] : offsets[v + 1]]` are one arc away from node v. There must be fewer than 65535 nodes.
    O(N * arcs).
    """
    nodes = len(offsets) - 1
    hops = np.full((nodes, nodes), np.uint16(UNREACHED), dtype=np.uint16)
    native.search_from(offsets, neighbours, np.arange(nodes), UNREACHED, hops)
    return hops


def sole_links(hops: NDArray[np.integer], tails: NDArray[np.integer], heads: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return int64[targets, nodes]: the link with which all shortest paths from the node to the target start.

    The entry is -1 if they start with different links. hops[i, v] is the distance from node v to target i,
    and link l leads from tails[l] to heads[l]. Every node must have an outgoing link. To get the last links of shortest
    paths instead, pass the distances from the sources and swap tails and heads. O(targets * links).
    """
    order = np.argsort(tails, kind="stable")
    first = np.searchsorted(tails[order], np.arange(hops.shape[1]))
    is_nearer = hops[:, heads[order]] + np.int64(1) == hops[:, tails[order]]
    count = np.add.reduceat(is_nearer, first, axis=1, dtype=np.int64)
    link = np.add.reduceat(np.where(is_nearer, order, 0), first, axis=1)
    return np.where(count == 1, link, -1)
