"""Hop distances, diameter and strong connection of a topology."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, connected_components

from synth.errors import InvalidInput
from synth.topology.topology import Topology


def require_strongly_connected(topology: Topology) -> None:
    """Raise InvalidInput, naming two nodes without a path, unless every node (switches too) reaches every other.

    O(nodes + links).
    """
    forward = adjacency(topology)
    count, _ = connected_components(forward, directed=True, connection="strong")
    if count == 1:
        return
    reached = np.zeros(topology.node_count, dtype=bool)
    reached[breadth_first_order(forward, 0, return_predecessors=False)] = True
    source, target = 0, int(np.argmin(reached))
    if reached.all():
        reached[:] = False
        reached[breadth_first_order(forward.T.tocsr(), 0, return_predecessors=False)] = True
        source, target = int(np.argmin(reached)), 0
    names = f"no path from {topology.node_ids[source]} to {topology.node_ids[target]} in {topology.spec}"
    raise InvalidInput("every node must have a path to every other", names, "add links or remove the node")


def adjacency(topology: Topology) -> csr_array:
    """Return the sparse matrix with a non-zero at (src, dst) of every link. O(nodes + links)."""
    links = topology.links
    shape = (topology.node_count, topology.node_count)
    return csr_array((np.ones(len(links), dtype=np.int32), (links.src, links.dst)), shape=shape)
