"""The cheapest tree from a root to all nodes of a small network with a price from each node to each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.sparse_matrix import Floats


def cheapest_tree(cost: Floats, root: int) -> NDArray[np.int64]:
    """Return int64[nodes], the parents in a cheapest tree from `root` to all, -1 for the root.

    Chu, Liu, Edmonds: everyone's cheapest parent; a cycle becomes one node, whose way in replaces the cycle's own.
    O(nodes^3).
    """
    nodes = len(cost)
    weights = cost.copy()
    np.fill_diagonal(weights, np.inf)
    parent: NDArray[np.int64] = weights.argmin(axis=0)
    parent[root] = -1
    cycle = _cycle(parent)
    if cycle is None:
        return parent
    outside = np.setdiff1d(np.arange(nodes), cycle)
    within = weights[parent[cycle], cycle]
    entering = weights[np.ix_(outside, cycle)] - within
    leaving = weights[np.ix_(cycle, outside)]
    smaller = np.full((len(outside) + 1, len(outside) + 1), np.inf)
    smaller[:-1, :-1] = weights[np.ix_(outside, outside)]
    smaller[:-1, -1], smaller[-1, :-1] = entering.min(axis=1), leaving.min(axis=0)
    inner = cheapest_tree(smaller, int(np.flatnonzero(outside == root)[0]))
    for place, above in enumerate(inner[:-1].tolist()):
        node = outside[place]
        if above == len(outside):
            parent[node] = cycle[leaving[:, place].argmin()]
        elif above >= 0:
            parent[node] = outside[above]
    gate = int(inner[-1])
    parent[cycle[entering[gate].argmin()]] = outside[gate]
    return parent


def _cycle(parent: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the nodes of a cycle of parents, None without one."""
    seen = np.full(len(parent), -1)
    for start in range(len(parent)):
        node = start
        while node >= 0 and seen[node] < 0:
            seen[node] = start
            node = int(parent[node])
        if node >= 0 and seen[node] == start:
            cycle = [node]
            while (node := int(parent[node])) != cycle[0]:
                cycle.append(node)
            return np.array(cycle)
    return None
