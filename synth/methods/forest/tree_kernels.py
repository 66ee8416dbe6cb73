"""Kernels that grow trees under known cuts: many in turn, or one continued from a partial tree."""

from __future__ import annotations

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.methods.forest.residual_network import ArcTable, ResidualNetwork
from chorale.synth.methods.forest.tree_growth import TreeGrowth, attach, empty_growth, finish_tree, start_tree


@inlined
def _take_tree(room: ResidualNetwork, growth: TreeGrowth, root: int, weight: int) -> None:
    """Subtract what a finished tree takes from arcs, root and slacks."""
    for index in range(1, len(room.node_slack)):
        room.capacity[growth.parent[growth.order[index]]] -= weight
    room.supply[root] -= weight
    for node in range(len(room.node_slack)):
        room.node_slack[node] -= growth.charges[node] * weight
    for cut in range(len(room.cut_slack)):
        room.cut_slack[cut] -= growth.paid[cut] * weight


@compiled
def grow_trees(
    arcs: ArcTable, room: ResidualNetwork, roots: Ranks, root: Ranks, weight: Integers, parent_arc: Matrix[np.int32]
) -> int:
    """Grow trees from `roots` in their order, until all their supply is used, the table is full or one is stuck.

    Row i of the table (root, weight, parent_arc[i]) receives the i-th tree, and `room` what they leave. Returns
    the number of trees. They keep all known cuts; other cuts may be overdrawn. O(trees * arcs), mostly less.
    """
    growth = empty_growth(len(room.node_slack), len(room.cut_slack), room.members.shape[1])
    tree = 0
    for start in roots:
        while room.supply[start] > 0 and tree < len(root):
            start_tree(room, growth, start, room.supply[start])
            grown, missing = finish_tree(arcs, room, growth, room.supply[start], len(room.node_slack) - 1)
            if missing:
                return tree
            _take_tree(room, growth, start, grown)
            root[tree], weight[tree] = start, grown
            parent_arc[tree] = growth.parent[: len(room.node_slack)]
            tree += 1
    return tree


@compiled
def continue_tree(
    arcs: ArcTable, room: ResidualNetwork, root: int, weight: int, path: Ranks, order: Ranks, parent: Ranks
) -> tuple[int, int]:
    """Grow one tree of `root` on from the arcs of `path`, which are in the order in which they were reached.

    Writes the nodes in the order in which they are reached, and their arcs. Returns (weight, nodes reached); fewer
    than all if the tree is stuck. `room` is not changed.
    """
    nodes = len(room.node_slack)
    growth = empty_growth(nodes, len(room.cut_slack), room.members.shape[1])
    start_tree(room, growth, root, weight)
    missing = nodes - 1
    for arc in path:
        attach(arcs, room, growth, arc, weight, missing)
        missing -= 1
    weight, missing = finish_tree(arcs, room, growth, weight, missing)
    for position in range(nodes - missing):
        node = growth.order[position]
        order[position], parent[node] = node, growth.parent[node]
    return weight, nodes - missing


@compiled
def take_trees(
    root: Ranks, weight: Integers, parent_arc: Matrix[np.int32], capacity: Integers, supply: Integers
) -> None:
    """Subtract what trees take from `capacity` and `supply`. O(trees * nodes)."""
    for tree in range(len(root)):
        supply[root[tree]] -= weight[tree]
        for arc in parent_arc[tree]:
            if arc >= 0:
                capacity[arc] -= weight[tree]
