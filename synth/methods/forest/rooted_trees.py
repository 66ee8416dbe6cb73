"""Trees of one root, grown arc by arc: broadcast and reduce on large networks.

A tree may take an arc as long as the root still reaches the head of the arc in as many ways as trees are to come. Such
an arc leads out of every part of a tree (Lovász' proof of Edmonds' theorem), so that no tree is ever taken back; and
one that is refused once is refused for good, so that each is asked about once per tree.
"""

from __future__ import annotations

from typing import NamedTuple

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


@compiled
def _grow(arcs: ArcTable, capacity: Integers, root: int, parent_arc: Matrix[np.int32]) -> bool:
    """Write the trees, which take from `capacity`; return whether all span the network."""
    trees, nodes = parent_arc.shape
    search = _Search(
        np.zeros(len(capacity), dtype=np.int64),
        np.empty(nodes * trees, dtype=np.int32),
        np.empty(nodes, dtype=np.int32),
        np.empty(nodes, dtype=np.int32),
        np.zeros(nodes, dtype=np.int64),
        np.zeros(1, dtype=np.int64),
    )
    order = np.empty(nodes, dtype=np.int32)
    for tree in range(trees):
        order[0], reached, position = root, 1, 0
        while position < reached:
            node = order[position]
            position += 1
            for place in range(arcs.tail_offsets[node], arcs.tail_offsets[node + 1]):
                arc = arcs.by_tail[place]
                head = arcs.heads[arc]
                if capacity[arc] > 0 and head != root and parent_arc[tree, head] < 0:
                    capacity[arc] -= 1
                    if _has_ways(arcs, capacity, search, root, head, trees - tree - 1):
                        parent_arc[tree, head] = arc
                        order[reached] = head
                        reached += 1
                    else:
                        capacity[arc] += 1
        if reached < nodes:
            return False
    return True


@inlined
def _has_ways(arcs: ArcTable, capacity: Integers, search: _Search, root: int, target: int, wanted: int) -> bool:
    """Whether `wanted` units flow from `root` to `target`."""
    count, touched = 0, 0
    found = True
    while found and count < wanted:
        found = _find_way(arcs, capacity, search, root, target)
        if found:
            touched = _send(arcs, search, root, target, touched)
            count += 1
    for place in range(touched):
        search.flow[search.used[place]] = 0
    return found


@inlined
def _find_way(arcs: ArcTable, capacity: Integers, search: _Search, root: int, target: int) -> bool:
    """Look for a way with room, from the target back."""
    search.last[0] += 1
    number = search.last[0]
    search.queue[0], length, position = target, 1, 0
    search.seen[target] = number
    while position < length and search.seen[root] != number:
        node = search.queue[position]
        position += 1
        for arc in range(arcs.head_offsets[node], arcs.head_offsets[node + 1]):
            before = arcs.tails[arc]
            if search.seen[before] != number and search.flow[arc] < capacity[arc]:
                search.seen[before], search.via[before] = number, arc
                search.queue[length] = before
                length += 1
        for place in range(arcs.tail_offsets[node], arcs.tail_offsets[node + 1]):
            arc = arcs.by_tail[place]
            before = arcs.heads[arc]
            if search.flow[arc] > 0 and search.seen[before] != number:
                search.seen[before], search.via[before] = number, -2 - arc
                search.queue[length] = before
                length += 1
    return bool(search.seen[root] == number)


@inlined
def _send(arcs: ArcTable, search: _Search, root: int, target: int, touched: int) -> int:
    """Send a unit along the way that was found; return how many arcs are in `used`."""
    node = root
    while node != target:
        arc = search.via[node]
        if arc >= 0:
            if search.flow[arc] == 0:
                search.used[touched] = arc
                touched += 1
            search.flow[arc] += 1
            node = arcs.heads[arc]
        else:
            search.flow[-2 - arc] -= 1
            node = arcs.tails[-2 - arc]
    return touched
