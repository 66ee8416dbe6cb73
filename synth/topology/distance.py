"""Computes hop counts and the diameter of a topology, and checks that all nodes can reach each other."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.kernels.types import Matrix
from chorale.synth.topology.topology import Topology, checked_orbits

_AT_ONCE = 256

Distances = Matrix[Any]
"""Matrix of hop counts: uint16, or uint32 for networks of 65536 nodes or more."""
Arcs = tuple[NDArray[np.int64], NDArray[np.int32]]
"""(offsets, neighbours): nodes `neighbours[offsets[v] : offsets[v + 1]]` are one arc away from node v."""


def hops_along(arcs: Arcs, starts: NDArray[np.integer] | None = None) -> Distances:
    """Return hops[i, v], the number of `arcs` on a shortest path from `starts[i]` to node v. O(starts * arcs).

    starts: start nodes; None means all nodes
    If there is no path, the entry is the maximum value of the matrix's integer type.
    """
    nodes = len(arcs[0]) - 1
    of = np.arange(nodes) if starts is None else np.asarray(starts, dtype=np.int64)
    unreached = np.iinfo(np.uint16 if nodes < 2**16 else np.uint32).max
    hops = np.full((len(of), nodes), unreached, dtype=np.min_scalar_type(unreached))
    native.search_from(*arcs, of, int(unreached), hops)
    return hops


def distances_to(topology: Topology, targets: NDArray[np.integer] | None = None) -> Distances:
    """Return hops[i, v], the number of links on a shortest path from node v to `targets[i]`.

    targets: target nodes; None means all nodes
    Raises InvalidInput if the network is not strongly connected.
    """
    return _connected(topology, hops_along(_arcs_backward(topology), targets))


def distances_from(topology: Topology, sources: NDArray[np.integer]) -> Distances:
    """Return hops[i, v], the number of links on a shortest path from `sources[i]` to node v.

    Raises InvalidInput if the network is not strongly connected.
    """
    return _connected(topology, hops_along(_arcs_forward(topology), sources))


def _connected(topology: Topology, hops: Distances) -> Distances:
    if np.any(hops == np.iinfo(hops.dtype).max):
        require_strongly_connected(topology)
    return hops


def require_strongly_connected(topology: Topology) -> None:
    """Raise InvalidInput if a node cannot reach another node; the message names both. O(nodes + links)."""
    for is_forward, arcs in ((True, _arcs_forward(topology)), (False, _arcs_backward(topology))):
        hops = hops_along(arcs, np.zeros(1, dtype=np.int64))[0]
        missing = np.flatnonzero(hops == np.iinfo(hops.dtype).max)
        if len(missing):
            ends = topology.node_ids[0], topology.node_ids[int(missing[0])]
            source, target = ends if is_forward else reversed(ends)
            names = f"no path from {source} to {target} in {topology.spec}"
            raise InvalidInput("some nodes cannot reach each other: {}", names, "add links, or remove the nodes")


def _arcs_backward(topology: Topology) -> Arcs:
    """Return all links as reversed arcs, so that `hops_along` counts the hops from each node to the start nodes."""
    return topology.links.incoming_offsets(topology.node_count), topology.links.src


def _arcs_forward(topology: Topology) -> Arcs:
    """Return all links as arcs, so that `hops_along` counts the hops from the start nodes to each node. O(L log L)."""
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    offsets = np.searchsorted(links.src[order], np.arange(topology.node_count + 1)).astype(np.int64)
    return offsets, links.dst[order]


def diameter(topology: Topology) -> int:
    """Return the diameter: the largest distance between two compute nodes, in links. O(orbits * links).

    Symmetries preserve distances, so it is enough to search from one node of each orbit. The orbits are those of the
    known symmetries that `is_automorphism` confirms.
    """
    ranks, arcs = topology.compute_count, _arcs_forward(topology)
    starts = np.unique(checked_orbits(topology)[:ranks], return_index=True)[1]
    blocks = np.array_split(starts, -(-len(starts) // _AT_ONCE))
    return max(int(hops_along(arcs, block)[:, :ranks].max()) for block in blocks)
