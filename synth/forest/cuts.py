"""Known cuts of a network as bits per node, and what trees cost them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled, inlined
from chorale.synth.flow.graph import Integers, Ranks
from chorale.synth.flow.oracle import Flags

Bits = NDArray[np.uint64]


def members_of(sides: Flags) -> Bits:
    """Return uint64[nodes, words] for bool[cuts, nodes]: bit i of row v says whether v is in `sides[i]`."""
    cuts, nodes = sides.shape
    words = -(-cuts // 64)
    padded = np.zeros((nodes, words * 64), dtype=np.bool_)
    padded[:, :cuts] = sides.T
    return np.packbits(padded, axis=1, bitorder="little").view("<u8").reshape(nodes, words).astype(np.uint64)


@inlined
def _add_crossings(members: Bits, tail: int, head: int, amount: int, total: Integers) -> None:
    """Add `amount` to the total of every cut that has `tail` but not `head`."""
    for word in range(members.shape[1]):
        crossed = members[tail, word] & ~members[head, word]
        cut = word << 6
        while crossed:
            if crossed & np.uint64(1):
                total[cut] += amount
            crossed >>= np.uint64(1)
            cut += 1


@inlined
def _add_members(members: Bits, node: int, amount: int, total: Integers) -> None:
    """Add `amount` to the total of every cut that has `node`."""
    for cut in range(len(total)):
        if (members[node, cut >> 6] >> np.uint64(cut & 63)) & np.uint64(1):
            total[cut] += amount


@compiled
def cut_slacks(cuts: int, members: Bits, tails: Ranks, heads: Ranks, capacity: Integers, supply: Integers) -> Integers:
    """Return int64 per cut: capacity out of its source side minus supply inside. O(arcs * words) and crossings."""
    slack = np.zeros(cuts, dtype=np.int64)
    for arc in range(len(tails)):
        if capacity[arc]:
            _add_crossings(members, tails[arc], heads[arc], capacity[arc], slack)
    for node in range(len(supply)):
        if supply[node]:
            _add_members(members, node, -supply[node], slack)
    return slack


@compiled
def feasible_trees(
    members: Bits, slack: Integers, tails: Ranks, root: Ranks, weight: Integers, parent_arc: NDArray[np.int32]
) -> int:
    """Return how many trees, taken in order, leave all the given cuts a slack of at least 0.

    `slack` is that before the first tree, and not changed. O(trees * nodes * words) and crossings.
    """
    left = slack.copy()
    for tree in range(len(root)):
        _add_members(members, root[tree], weight[tree], left)
        for node in range(parent_arc.shape[1]):
            if node != root[tree]:
                _add_crossings(members, tails[parent_arc[tree, node]], node, -weight[tree], left)
        if left.min() < 0:
            return tree
    return len(root)


@compiled
def feasible_arcs(
    members: Bits, slack: Integers, tails: Ranks, heads: Ranks, path: Ranks, root: int, weight: int
) -> int:
    """Return how many arcs of one growing tree, taken in order, leave the given cuts a slack of at least 0."""
    left = slack.copy()
    _add_members(members, root, weight, left)
    for index in range(len(path)):
        _add_crossings(members, tails[path[index]], heads[path[index]], -weight, left)
        if left.min() < 0:
            return index
    return len(path)
