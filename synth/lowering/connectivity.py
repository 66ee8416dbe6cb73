"""Which ranks of a network can reach which."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order

from chorale.synth.topology.topology import Topology


def reachability(topology: Topology) -> Callable[[int, int], bool]:
    """Return a function that says whether a path of links leads from one node to another.

    O(nodes + links) for the first question about each source.
    """
    links = topology.links
    size = topology.node_count
    graph = coo_array((np.ones(len(links), dtype=np.int64), (links.src, links.dst)), shape=(size, size)).tocsr()
    reached: dict[int, frozenset[int]] = {}

    def connected(source: int, target: int) -> bool:
        if source not in reached:
            order = breadth_first_order(graph, source, directed=True, return_predecessors=False)
            reached[source] = frozenset(map(int, order))
        return target in reached[source]

    return connected
