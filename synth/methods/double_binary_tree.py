"""Double binary tree: half of the data on each of two trees, in which no rank is an inner node twice.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective, CollectiveName, require_collective
from chorale.synth.methods.grid.pattern import CollectivePattern
from chorale.synth.methods.grid.steps import SubCollective, backwards, whole_vector_step
from chorale.synth.topology.families.grids import double_tree_parents
from chorale.synth.topology.topology import Topology


def tree_depths(parent: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many links each node is away from the root. O(nodes * height)."""
    depth = np.zeros(len(parent), dtype=np.int64)
    ancestor = parent
    while (below := ancestor >= 0).any():
        depth += below
        ancestor = np.where(below, parent[ancestor], -1)
    return depth


def double_binary_tree(topology: Topology, collective: Collective) -> CollectivePattern:
    """Return allreduce, broadcast or reduce on the two trees of dbt:N, pipelined.

    allreduce sums up to the root of each tree and copies back down; `steps` is the height of both ways. For
    broadcast and reduce the ranks are turned so that the root of the collective is the root of the first tree; it
    hangs above the root of the second, where it was a leaf. Routes are minimal on other networks than dbt:N.
    """
    ranks = topology.compute_count
    parents = double_tree_parents(ranks)
    if collective.root is not None:
        parents = (parents[0], _with_root(parents[1], 0))
        parents = (_turned(parents[0], collective.root), _turned(parents[1], collective.root))
    height = int(max(tree_depths(parent).max() for parent in parents))
    parts = tuple(_subcollective(parent, height, collective) for parent in parents)
    return CollectivePattern(topology, collective, "double-binary-tree", {}, parts, kind="pipelined")


def _subcollective(parent: NDArray[np.int64], height: int, collective: Collective) -> SubCollective:
    """Return what makes `collective` on a tree; a rank sends to its parent when all below it have sent.

    parent: int64[N], the parent of each rank, -1 for the root. height: of the tree, which is the number of steps
    """
    depth = tree_depths(parent)

    def ends(distance: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        src = np.flatnonzero(depth == distance)
        return src, parent[src]

    tree = [whole_vector_step(partial(ends, distance), len(parent), distance) for distance in range(height, 0, -1)]
    parts: dict[CollectiveName, SubCollective] = {
        CollectiveName.ALLREDUCE: [*tree, *backwards(tree)],
        CollectiveName.BROADCAST: backwards(tree),
        CollectiveName.REDUCE: tree,
    }
    require_collective("double-binary-tree", collective, parts)
    return parts[collective.name]


def _with_root(parent: NDArray[np.int64], leaf: int) -> NDArray[np.int64]:
    """Return the tree with `leaf` taken off and put above the root."""
    changed = parent.copy()
    changed[parent < 0] = leaf
    changed[leaf] = -1
    return changed


def _turned(parent: NDArray[np.int64], by: int) -> NDArray[np.int64]:
    """Return the tree in which rank r + by modulo N does what rank r does here."""
    moved = np.where(parent < 0, -1, (parent + by) % len(parent))
    return np.roll(moved, by)
