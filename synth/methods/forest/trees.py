"""Packed trees as arrays, thousands over thousands of nodes, and the key by which optimal packings are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.methods.forest.network import ForestNetwork
from chorale.synth.methods.method import Objective


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """Spanning out-trees of a network without switches, each with a weight.

    root:       int32 per tree
    weight:     int64 per tree: how many units of capacity it takes on every arc it uses
    parent_arc: int32[trees, nodes]: the arc over which the tree reaches each node, -1 at its root
    """

    root: NDArray[np.int32]
    weight: NDArray[np.int64]
    parent_arc: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.root)


def no_trees(nodes: int) -> Trees:
    """Return no trees, of a network of so many nodes."""
    nothing = np.empty(0, dtype=np.int32)
    return Trees(nothing, nothing.astype(np.int64), np.empty((0, nodes), dtype=np.int32))


def joined_trees(parts: Sequence[Trees]) -> Trees:
    """Return all trees of one or more `parts`, in their order."""
    root, weight = np.concatenate([part.root for part in parts]), np.concatenate([part.weight for part in parts])
    parent_arc = np.concatenate([part.parent_arc for part in parts])
    return Trees(root, weight, parent_arc)


def tree_heights(trees: Trees, src: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return int32 per tree: the most arcs from its root to a node; `src` is where each arc starts. O(size)."""
    heights = np.zeros(len(trees), dtype=np.int32)
    native.tree_heights(trees.root, trees.parent_arc, src, heights)
    return heights


def objective_key(network: ForestNetwork, trees: Trees, objective: Objective) -> tuple[int, ...]:
    """Return numbers of which the smaller is better, the first that differs decides.

    height:   the greatest height, the heights added up by weight, the number of trees
    trees:    the number of trees, then as for height
    balanced: greatest height times number of trees, then as for height
    """
    heights = tree_heights(trees, network.src)
    highest, count = int(heights.max(initial=0)), len(trees)
    low = (highest, int((heights * trees.weight).sum()), count)
    return {"height": low, "trees": (count, *low), "balanced": (highest * count, *low)}[objective]
