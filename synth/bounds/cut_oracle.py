"""One oracle for tree packing: do all cuts of a network carry the trees that still have to cross them?

A state is a digraph with integer capacities c and a supply k_v of trees still to be rooted at each node. All
trees can be packed (bandwidth-optimal pipeline, theorems 5, 8 and 12) if and only if

    c(S -> V - S) >= sum of k_v over v in S        for every node set S that leaves out at least one sink,

where every compute node is a sink. That is one maximum flow per sink w: with k_v units of supply at every
node v, all of them must be able to reach w. Three facts make these flows cheap:

- flows start at the sink and search backwards, so only the part of the network that matters is visited;
- once w has passed, every cut around w is settled, so that w may give without limit to the sinks that follow;
- a sink that takes enough straight from settled nodes has passed without any flow: the next flow is always for
  the sink that takes most (maximum adjacency order).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers, Ranks, ResidualGraph
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix

UNLIMITED = 2**61
Flags = NDArray[np.bool_]


class _FlowSearch(NamedTuple):
    """Scratch of one flow at a time; `_restore` undoes what a flow changed, at the cost of what it visited.

    residual: int64 per half-arc;  room: int64 per node, supply not used yet
    level:    int32 per node, hops to the sink or -1;  queue: the nodes that have a level, in order of level
    cursor:   int64 per node, the next half-arc to try;  path: half-arcs from the sink to the current node
    seen, visited: the nodes whose half-arcs were looked at in this flow, as flags and as a list
    """

    residual: Integers
    room: Integers
    level: Ranks
    queue: Ranks
    cursor: Integers
    path: Integers
    seen: Flags
    visited: Ranks


@inlined
def _make_search(graph: ResidualGraph, capacity: Integers, supply: Integers, settled: Flags) -> _FlowSearch:
    nodes = len(graph.offsets) - 1
    room = supply.copy()
    for node in range(nodes):
        if settled[node]:
            room[node] = UNLIMITED
    return _FlowSearch(
        capacity.copy(),
        room,
        np.full(nodes, -1, dtype=np.int32),
        np.empty(nodes, dtype=np.int32),
        np.empty(nodes, dtype=np.int64),
        np.empty(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.bool_),
        np.empty(nodes, dtype=np.int32),
    )


@inlined
def _find_levels(graph: ResidualGraph, sink: int, need: int, search: _FlowSearch) -> tuple[int, int, int]:
    """Give levels to nodes that can still send to `sink`, until their room covers `need`.

    Returns how many nodes have a level, of how many the half-arcs were looked at, and the room found. Room 0
    means that every node that can reach the sink was looked at and none has anything left to give.
    """
    level, queue, room = search.level, search.queue, search.room
    level[sink] = 0
    queue[0] = sink
    search.cursor[sink] = graph.offsets[sink]
    head, tail, found = 0, 1, min(room[sink], need)
    deepest = graph.offsets.shape[0]
    while head < tail and level[queue[head]] < deepest:
        node = queue[head]
        head += 1
        for half in range(graph.offsets[node], graph.offsets[node + 1]):
            before = graph.tails[half]
            if level[before] < 0 and search.residual[half] > 0:
                level[before] = level[node] + 1
                search.cursor[before] = graph.offsets[before]
                queue[tail] = before
                tail += 1
                found += min(room[before], need)
                if found >= need:
                    deepest = min(deepest, level[before])
    return tail, head, found


@inlined
def _take(graph: ResidualGraph, node: int, depth: int, need: int, search: _FlowSearch) -> tuple[int, int]:
    """Send supply of `node` along the current path; return the amount, and how much of the path is still open."""
    amount = min(need, search.room[node])
    for index in range(depth):
        amount = min(amount, search.residual[search.path[index]])
    search.room[node] -= amount
    open_depth = depth
    for index in range(depth - 1, -1, -1):
        half = search.path[index]
        search.residual[half] -= amount
        search.residual[graph.mates[half]] += amount
        if search.residual[half] == 0:
            open_depth = index
    return amount, open_depth


@inlined
def _blocking_flow(graph: ResidualGraph, sink: int, need: int, search: _FlowSearch) -> int:
    """Send up to `need` units to `sink` down the levels, until they are blocked; return the amount."""
    sent, depth, node = 0, 0, sink
    while True:
        if search.room[node] > 0:
            amount, depth = _take(graph, node, depth, need - sent, search)
            sent += amount
            if sent == need:
                return sent
            node = sink if depth == 0 else graph.tails[search.path[depth - 1]]
        advanced = False
        while search.cursor[node] < graph.offsets[node + 1] and not advanced:
            half = search.cursor[node]
            before = graph.tails[half]
            if search.residual[half] > 0 and search.level[before] == search.level[node] + 1:
                search.path[depth] = half
                depth += 1
                node = before
                advanced = True
            else:
                search.cursor[node] += 1
        if advanced:
            continue
        if depth == 0:
            return sent
        depth -= 1
        node = graph.tails[graph.mates[search.path[depth]]]
        search.cursor[node] += 1


@inlined
def _forget(levels: int, expanded: int, visited: int, search: _FlowSearch) -> int:
    """Clear the levels of a finished phase, note the nodes it looked at; return their number so far."""
    for index in range(levels):
        node = search.queue[index]
        search.level[node] = -1
        if index < expanded and not search.seen[node]:
            search.seen[node] = True
            search.visited[visited] = node
            visited += 1
    return visited


@inlined
def _restore(
    graph: ResidualGraph, capacity: Integers, supply: Integers, settled: Flags, visited: int, search: _FlowSearch
) -> None:
    for index in range(visited):
        node = search.visited[index]
        search.seen[node] = False
        search.room[node] = UNLIMITED if settled[node] else supply[node]
        for half in range(graph.offsets[node], graph.offsets[node + 1]):
            mate, before = graph.mates[half], graph.tails[half]
            search.residual[half] = capacity[half]
            search.residual[mate] = capacity[mate]
            search.room[before] = UNLIMITED if settled[before] else supply[before]


@inlined
def _reaches(
    graph: ResidualGraph,
    capacity: Integers,
    supply: Integers,
    settled: Flags,
    sink: int,
    need: int,
    search: _FlowSearch,
    cut: Flags,
) -> bool:
    """Whether `need` units can reach `sink`; if not, write the sink side of the smallest cut that forbids it."""
    visited, sent = 0, 0
    while sent < need:
        levels, expanded, found = _find_levels(graph, sink, need - sent, search)
        if found == 0:
            cut[:] = False
            for index in range(levels):
                cut[search.queue[index]] = True
        else:
            sent += _blocking_flow(graph, sink, need - sent, search)
        visited = _forget(levels, expanded, visited, search)
        if found == 0:
            break
    _restore(graph, capacity, supply, settled, visited, search)
    return sent >= need


@inlined
def _settle(
    graph: ResidualGraph, capacity: Integers, node: int, slack: Integers, settled: Flags, search: _FlowSearch
) -> None:
    settled[node] = True
    search.room[node] = UNLIMITED
    for half in range(graph.offsets[node], graph.offsets[node + 1]):
        slack[graph.tails[half]] += capacity[graph.mates[half]]


@inlined
def _next_sink(slack: Integers, sinks: Flags, settled: Flags) -> int:
    best = -1
    for node in range(len(slack)):
        if sinks[node] and not settled[node] and (best < 0 or slack[node] > slack[best]):
            best = node
    return best


@compiled
def violated_cuts(
    graph: ResidualGraph, capacity: Integers, supply: Integers, sinks: Flags, settled: Flags, cuts: Matrix[np.bool_]
) -> int:
    """Test the cuts around every one of `sinks`; return how many were found violated, at most `len(cuts)`.

    capacity: int64 per half-arc;  supply: int64 per node, trees that still have to leave it
    sinks:    flags of the nodes that every tree must reach
    settled:  flags of sinks around which all cuts are known to hold; those that pass are added. A sink whose cut
              is violated is added too, unless it fills the table: then the call may be repeated after a repair.
    cuts:     bool[rows, nodes], row i receives the sink side T of the i-th violated cut: capacity into T is less
              than the supply outside T. It is the smallest such T of its sink.

    All amounts must be below `LARGEST_AMOUNT`, sums included. O(sinks * flow), mostly far less.
    """
    nodes = len(graph.offsets) - 1
    search = _make_search(graph, capacity, supply, settled)
    total = supply.sum()
    slack = supply - total
    for node in range(nodes):
        if settled[node]:
            _settle(graph, capacity, node, slack, settled, search)
    found = 0
    while found < len(cuts):
        sink = _next_sink(slack, sinks, settled)
        if sink < 0:
            break
        holds = slack[sink] >= 0
        if not holds:
            holds = _reaches(graph, capacity, supply, settled, sink, total, search, cuts[found])
        if not holds:
            found += 1
            if found == len(cuts):
                break
        _settle(graph, capacity, sink, slack, settled, search)
    return found
