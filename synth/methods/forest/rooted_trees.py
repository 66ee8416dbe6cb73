"""Trees of one root, grown arc by arc: broadcast and reduce on large networks.

A tree may take an arc as long as the root still reaches the head of the arc in as many ways as trees are to come. Such
an arc leads out of every part of a tree (Lovász' proof of Edmonds' theorem), so that no tree is ever taken back; and
one that is refused once is refused for good, so that each is asked about once per tree.
"""

from __future__ import annotations

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
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
    if not _grow(arcs, capacity.copy(), int(roots[0]), parent_arc):
        return None
    return Trees(np.repeat(roots, count).astype(np.int32), np.ones(count, dtype=np.int64), parent_arc)


@compiled
def _grow(arcs: ArcTable, capacity: Integers, root: int, parent_arc: Matrix[np.int32]) -> bool:
    """Write the trees, which take from `capacity`; return whether all span the network."""
    nodes = parent_arc.shape[1]
    flow = np.zeros(len(capacity), dtype=np.int64)
    used = np.empty(nodes * len(parent_arc), dtype=np.int32)
    queue, via = np.empty(nodes, dtype=np.int32), np.empty(nodes, dtype=np.int32)
    order, seen = np.empty(nodes, dtype=np.int32), np.zeros(nodes, dtype=np.int64)
    stamp = 0
    for tree in range(len(parent_arc)):
        order[0], reached, position = root, 1, 0
        while position < reached:
            node = order[position]
            position += 1
            for place in range(arcs.tail_offsets[node], arcs.tail_offsets[node + 1]):
                arc = arcs.by_tail[place]
                head = arcs.heads[arc]
                if capacity[arc] > 0 and head != root and parent_arc[tree, head] < 0:
                    capacity[arc] -= 1
                    ways, stamp = _ways(
                        arcs, capacity, flow, used, queue, via, seen, stamp, root, head, len(parent_arc) - tree - 1
                    )
                    if ways:
                        parent_arc[tree, head] = arc
                        order[reached] = head
                        reached += 1
                    else:
                        capacity[arc] += 1
        if reached < nodes:
            return False
    return True


@inlined
def _ways(
    arcs: ArcTable,
    capacity: Integers,
    flow: Integers,
    used: Ranks,
    queue: Ranks,
    via: Ranks,
    seen: Integers,
    stamp: int,
    root: int,
    target: int,
    wanted: int,
) -> tuple[bool, int]:
    """Return whether `wanted` units flow from `root` to `target`, and the last stamp used; `flow` is zero again."""
    count, touched = 0, 0
    found = True
    while found and count < wanted:
        stamp += 1
        found = _search(arcs, capacity, flow, queue, via, seen, stamp, root, target)
        if found:
            touched = _send(arcs, flow, used, via, root, target, touched)
            count += 1
    for place in range(touched):
        flow[used[place]] = 0
    return found, stamp


@inlined
def _search(
    arcs: ArcTable,
    capacity: Integers,
    flow: Integers,
    queue: Ranks,
    via: Ranks,
    seen: Integers,
    stamp: int,
    root: int,
    target: int,
) -> bool:
    """Look for a way with room, from the target back; `via` gets arcs by which nodes go on, or -2 - arcs to go back."""
    queue[0], length, position = target, 1, 0
    seen[target] = stamp
    while position < length:
        node = queue[position]
        position += 1
        for arc in range(arcs.head_offsets[node], arcs.head_offsets[node + 1]):
            before = arcs.tails[arc]
            if seen[before] != stamp and flow[arc] < capacity[arc]:
                seen[before], via[before] = stamp, arc
                if before == root:
                    return True
                queue[length] = before
                length += 1
        for place in range(arcs.tail_offsets[node], arcs.tail_offsets[node + 1]):
            arc = arcs.by_tail[place]
            before = arcs.heads[arc]
            if flow[arc] > 0 and seen[before] != stamp:
                seen[before], via[before] = stamp, -2 - arc
                if before == root:
                    return True
                queue[length] = before
                length += 1
    return False


@inlined
def _send(arcs: ArcTable, flow: Integers, used: Ranks, via: Ranks, root: int, target: int, touched: int) -> int:
    """Send a unit along `via`; return how many arcs are in `used`, which carry flow or did."""
    node = root
    while node != target:
        arc = via[node]
        if arc >= 0:
            if flow[arc] == 0:
                used[touched] = arc
                touched += 1
            flow[arc] += 1
            node = arcs.heads[arc]
        else:
            flow[-2 - arc] -= 1
            node = arcs.tails[-2 - arc]
    return touched
