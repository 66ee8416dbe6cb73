"""Growing one spanning tree level by level without violating any known cut.

A tree of root r and weight m takes m units of every arc that it uses, and m of the trees that r still has to root. A
set S of nodes keeps its slack, capacity out of S minus trees still to be rooted in S, as the tree leaves S for the
first time, if r is in S; every other arc out of S costs m, and no known S may lose more than its slack. The sets {v}
are always known, others are learned from the oracle. New nodes take the arc of most residual capacity, for short trees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chorale.synth.bounds.residual_graph import Integers, Ranks
from chorale.synth.kernels.compiled import inlined
from chorale.synth.methods.forest.residual_network import ArcTable, ResidualNetwork
from chorale.synth.methods.forest.split.cut_table import Bits

_PULL_COST = 16
"""Arcs looked at to find the parent of one node, as an estimate: where a level has more arcs than that for each
node that is missing, it is better to look from the missing nodes."""


class TreeGrowth(NamedTuple):
    """Scratch of one tree at a time.

    parent:  int32 per node, the arc over which the tree reaches it, -1 at the root
    depth:   int32 per node, -1 where the tree is not yet;  order: nodes as they were reached, the root first
    first, last, after: nodes of equal depth as linked lists, per depth and per node
    missing, missing_position: nodes that are not reached yet, and where each stands in that list
    charges: int64 per node, arcs out of {v} that have to be paid for: -1 at the root, whose first is free
    paid:    int64 per known cut, the same for its S
    tight:   uint64[words], bits of the cuts that one more arc would overdraw
    best:    int32 per node, the arc that would reach it;  reachable: nodes that have one
    awaited: int32 per node, the depth of a tree node that has plenty for it, -1 if none
    """

    parent: Ranks
    depth: Ranks
    order: Ranks
    first: Ranks
    last: Ranks
    after: Ranks
    missing: Ranks
    missing_position: Ranks
    charges: Integers
    paid: Integers
    tight: Bits
    best: Ranks
    reachable: Ranks
    awaited: Ranks


@inlined
def empty_growth(nodes: int, cuts: int, words: int) -> TreeGrowth:
    ranks = np.empty((11, nodes + 1), dtype=np.int32)
    return TreeGrowth(
        ranks[0], ranks[1], ranks[2], ranks[3], ranks[4], ranks[5], ranks[6], ranks[7],
        np.empty(nodes, dtype=np.int64), np.empty(cuts, dtype=np.int64), np.empty(words, dtype=np.uint64),
        ranks[8], ranks[9], ranks[10],
    )  # fmt: skip


@inlined
def _tighten(room: ResidualNetwork, growth: TreeGrowth, weight: int) -> None:
    """Mark the cuts that one more arc of `weight` would overdraw."""
    growth.tight[:] = 0
    for cut in range(len(room.cut_slack)):
        if room.cut_slack[cut] < (growth.paid[cut] + 1) * weight:
            growth.tight[cut >> 6] |= np.uint64(1) << np.uint64(cut & 63)


@inlined
def start_tree(room: ResidualNetwork, growth: TreeGrowth, root: int, weight: int) -> None:
    nodes = len(room.node_slack)
    growth.depth[:] = -1
    growth.first[:] = -1
    growth.charges[:] = 0
    growth.best[:] = -1
    growth.awaited[:] = -1
    for node in range(nodes):
        growth.missing[node], growth.missing_position[node] = node, node
    growth.parent[root] = -1
    growth.charges[root] = -1
    for cut in range(len(room.cut_slack)):
        inside = (room.members[root, cut >> 6] >> np.uint64(cut & 63)) & np.uint64(1)
        growth.paid[cut] = -1 if inside else 0
    _tighten(room, growth, weight)
    _reach(growth, root, 0, nodes)


@inlined
def _reach(growth: TreeGrowth, node: int, depth: int, missing: int) -> None:
    """Note that the tree is now at `node`; `missing` nodes were not reached before."""
    growth.depth[node] = depth
    growth.after[node] = -1
    if growth.first[depth] < 0:
        growth.first[depth] = node
    else:
        growth.after[growth.last[depth]] = node
    growth.last[depth] = node
    place, other = growth.missing_position[node], growth.missing[missing - 1]
    growth.missing[place], growth.missing_position[other] = other, place
    growth.order[len(growth.charges) - missing] = node


@inlined
def _fits(arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, arc: int, weight: int) -> bool:
    tail, head = arcs.tails[arc], arcs.heads[arc]
    if room.capacity[arc] < weight or room.node_slack[tail] < (growth.charges[tail] + 1) * weight:
        return False
    for word in range(len(growth.tight)):
        if room.members[tail, word] & ~room.members[head, word] & growth.tight[word]:
            return False
    return True


@inlined
def attach(arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, arc: int, weight: int, missing: int) -> None:
    """Reach the head of `arc` over it and charge the cuts that it crosses."""
    tail, head = arcs.tails[arc], arcs.heads[arc]
    growth.charges[tail] += 1
    for word in range(len(growth.tight)):
        crossed = room.members[tail, word] & ~room.members[head, word]
        cut = word << 6
        while crossed:
            if crossed & np.uint64(1):
                growth.paid[cut] += 1
                if room.cut_slack[cut] < (growth.paid[cut] + 1) * weight:
                    growth.tight[word] |= np.uint64(1) << np.uint64(cut & 63)
            crossed >>= np.uint64(1)
            cut += 1
    growth.parent[head] = arc
    _reach(growth, head, growth.depth[tail] + 1, missing)


@inlined
def _best_into(arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, node: int, depth: int, weight: int) -> int:
    """Return the arc with most room from a node of `depth` to `node`, or -1."""
    best, most = -1, weight - 1
    for arc in range(arcs.head_offsets[node], arcs.head_offsets[node + 1]):
        if arcs.capacity[arc] <= most:
            break
        fresh = growth.depth[arcs.tails[arc]] == depth and room.capacity[arc] > most
        if fresh and _fits(arcs, room, growth, arc, weight):
            best, most = arc, room.capacity[arc]
    return best


@inlined
def _push(arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, depth: int, weight: int) -> int:
    """Find for each node that a level can reach the arc with most room; return how many there are."""
    found = 0
    node = growth.first[depth]
    while node >= 0:
        if room.node_slack[node] >= (growth.charges[node] + 1) * weight:
            for index in range(arcs.tail_offsets[node], arcs.tail_offsets[node + 1]):
                arc = arcs.by_tail[index]
                head = arcs.heads[arc]
                if growth.depth[head] >= 0:
                    continue
                best = growth.best[head]
                better = best < 0 or room.capacity[arc] > room.capacity[best]
                if better and _fits(arcs, room, growth, arc, weight):
                    if best < 0:
                        growth.reachable[found] = head
                        found += 1
                    growth.best[head] = arc
        node = growth.after[node]
    return found


@inlined
def _extend(
    arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, depth: int, weight: int, missing: int, patient: bool
) -> int:
    """Reach what the nodes of one level can reach, over the arcs with most room; return what is still missing.

    patient: leave scarce arcs alone where a node of the next level has plenty
    """
    cost = 0
    node = growth.first[depth]
    while node >= 0:
        cost += arcs.tail_offsets[node + 1] - arcs.tail_offsets[node]
        node = growth.after[node]
    pulls = cost > missing * _PULL_COST
    if pulls:
        found = missing
        growth.reachable[:missing] = growth.missing[:missing]
    else:
        found = _push(arcs, room, growth, depth, weight)
    for index in range(found):
        node = growth.reachable[index]
        arc = growth.best[node]
        growth.best[node] = -1
        if arc < 0 or not _fits(arcs, room, growth, arc, weight):
            arc = _best_into(arcs, room, growth, node, depth, weight)
        if arc >= 0 and not (patient and arcs.scarce[arc] and growth.awaited[node] == depth + 1):
            attach(arcs, room, growth, arc, weight, missing)
            missing -= 1
            first = arcs.tail_offsets[node]
            for row in range(first, first + arcs.plenty[node]):
                growth.awaited[arcs.heads[arcs.by_tail[row]]] = depth + 1
    return missing


@inlined
def _largest_weight(arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, weight: int, missing: int) -> int:
    """Return the largest weight, below `weight`, for which the tree could go on; 0 if there is none."""
    most = 0
    for index in range(missing):
        node = growth.missing[index]
        for arc in range(arcs.head_offsets[node], arcs.head_offsets[node + 1]):
            if growth.depth[arcs.tails[arc]] >= 0 and room.capacity[arc] > most:
                most = max(most, _weight_over(arcs, room, growth, arc))
    return min(most, weight)


@inlined
def _weight_over(arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, arc: int) -> int:
    tail, head = arcs.tails[arc], arcs.heads[arc]
    most = int(room.capacity[arc])
    if growth.charges[tail] >= 0:
        most = min(most, room.node_slack[tail] // (growth.charges[tail] + 1))
    for cut in range(len(room.cut_slack)):
        word, bit = cut >> 6, np.uint64(cut & 63)
        crossed = (room.members[tail, word] & ~room.members[head, word]) >> bit & np.uint64(1)
        if crossed and growth.paid[cut] >= 0:
            most = min(most, room.cut_slack[cut] // (growth.paid[cut] + 1))
    return most


@inlined
def finish_tree(
    arcs: ArcTable, room: ResidualNetwork, growth: TreeGrowth, weight: int, missing: int
) -> tuple[int, int]:
    """Extend the tree to all nodes, lowering its weight where nothing else fits; return (weight, nodes missing).

    It is stuck if nodes are missing: then a cut that is not known is overdrawn already.
    """
    depth, patient = 0, True
    while missing:
        if growth.first[depth] < 0:
            lower = _largest_weight(arcs, room, growth, weight, missing)
            if lower == 0:
                break
            # Where more would have fitted at this weight, waiting has been in vain.
            depth, patient = 0, lower < weight
            growth.awaited[:] = -1
            weight = lower
            _tighten(room, growth, weight)
            continue
        missing = _extend(arcs, room, growth, depth, weight, missing, patient)
        depth += 1
    return weight, missing
