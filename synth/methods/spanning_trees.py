"""Finds minimum-cost spanning trees, for symmetric and for directed cost matrices."""

import numpy as np
from numpy.typing import NDArray

from chorale.synth.linear_program import Floats


def spanning_tree(cost: Floats, root: int) -> NDArray[np.int64]:
    """Return int64[nodes]: each node's parent in a cheapest tree for symmetric costs, -1 for the root.

    `cost` is float[nodes, nodes]. Uses Prim's algorithm, which is much faster than `cheapest_tree`. O(nodes^2).
    """
    best, parent = cost[root].copy(), np.full(len(cost), root, dtype=np.int64)
    outside = np.ones(len(cost), dtype=np.bool_)
    outside[root], parent[root] = False, -1
    for _ in range(len(cost) - 1):
        others = np.flatnonzero(outside)
        child = int(others[np.argmin(best[others])])
        outside[child] = False
        closer = outside & (cost[child] < best)
        best[closer], parent[closer] = cost[child][closer], child
    return parent


def cheapest_tree(cost: Floats, root: int) -> NDArray[np.int64]:
    """Return int64[nodes]: each node's parent in a cheapest tree from `root` to all nodes, -1 for the root.

    `cost[u, v]` is the cost of the arc from u to v. Uses the Chu-Liu/Edmonds algorithm: every node takes its cheapest
    parent; if this makes a cycle, the cycle becomes one node, whose incoming arc replaces one of the cycle's arcs.
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
    for index, above in enumerate(inner[:-1].tolist()):
        if above >= 0:
            parent[outside[index]] = cycle[leaving[:, index].argmin()] if above == len(outside) else outside[above]
    gate = int(inner[-1])
    parent[cycle[entering[gate].argmin()]] = outside[gate]
    return parent


def _cycle(parent: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the nodes of a cycle in the parent table `parent`, or None if there is no cycle."""
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
