"""Trees of one root, grown arc by arc: broadcast and reduce on large networks.

A tree may take an arc as long as the root still reaches the head of the arc in as many ways as trees are to come. Such
an arc leads out of every part of a tree (Lovász' proof of Edmonds' theorem), so that no tree is ever taken back; and
one that is refused once is refused for good, so that each is asked about once per tree.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels import native
from chorale.synth.methods.forest.residual_network import ArcTable
from chorale.synth.methods.forest.trees import Trees

MAX_WORK = 2**31
"""Of trees^2 * nodes * arcs: some seconds. Where it is more, trees are packed with weights, one taken many times."""


def rooted_trees(arcs: ArcTable, capacity: Integers, supply: Integers) -> Trees | None:
    """Return trees within `capacity`, int64 per arc, for all of `supply`, int64 per node, which is at one root.

    None where there are other roots, no such trees, or much work. Each has weight 1 and is grown breadth first.
    O(trees^2 * arcs^2) at worst, as a rule O(trees^2 * nodes * arcs).
    """
    roots = np.flatnonzero(supply)
    if len(roots) != 1:
        return None
    count = int(supply[roots[0]])
    if count**2 * len(supply) * len(capacity) > MAX_WORK:
        return None
    parent_arc = np.full((count, len(supply)), -1, dtype=np.int32)
    if not native.grow_rooted_trees(arcs, capacity.copy(), int(roots[0]), parent_arc):
        return None
    return Trees(np.repeat(roots, count).astype(np.int32), np.ones(count, dtype=np.int64), parent_arc)


class _Search(NamedTuple):
    """Scratch of the search for ways to a node.

    flow:  int64 per arc, zero between searches;  used: int32, arcs that carry flow, or did
    queue: int32, nodes that were reached;  via: int32 per node, the arc by which it goes on, -2 - arc to go back
    seen:  int64 per node, the last search that reached it, by its number in `last`, int64[1]
    """

    flow: Integers
    used: Ranks
    queue: Ranks
    via: Ranks
    seen: Integers
    last: Integers
