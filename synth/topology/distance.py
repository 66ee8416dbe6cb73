"""Hop distances and strong connection of a topology, and its diameter without the distances of all pairs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.kernels.types import Matrix
from chorale.synth.topology.all_hops import search_from
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.topology import Topology

_FEW_LINKS = 2**14
"""So many are swept in less time than it takes to load machine code."""
_UNREACHED = 2**32 - 1

Distances = Matrix[np.uint16] | Matrix[np.uint32]
"""Hops; uint32 only for networks of 65535 nodes or more."""


def hop_distances(topology: Topology) -> Distances:
    """Return uint16[N, N] over all nodes, switches too: entry [u, v] is the number of links from v to u.

    Breadth-first search over incoming links from every u. O(N L) time, 2 N^2 bytes. Raises InvalidInput for a
    network that is not strongly connected.
    """
    return distances_to(topology, np.arange(topology.node_count))


def distances_to(topology: Topology, targets: NDArray[np.integer]) -> Distances:
    """Return hops[targets, N]: entry [i, v] is the number of links from node v to `targets[i]`."""
    return hops_along(topology, arcs_backward(topology), targets)


def distances_from(topology: Topology, sources: NDArray[np.integer]) -> Distances:
    """Return hops[sources, N]: entry [i, v] is the number of links from `sources[i]` to node v."""
    return hops_along(topology, arcs_forward(topology), sources)


def require_strongly_connected(topology: Topology) -> None:
    """Raise InvalidInput, naming two nodes without a path, unless every node (switches too) reaches every other.

    O(nodes + links).
    """
    if len(topology.links) <= _FEW_LINKS and _reaches_all(topology):
        return
    if _is_balanced(topology) and _first_unreached(topology, arcs_backward(topology)) < 0:
        return
    unreached = _first_unreached(topology, arcs_forward(topology))
    source, target = 0, unreached
    if unreached < 0:
        source, target = _first_unreached(topology, arcs_backward(topology)), 0
    if source < 0:
        return
    names = f"no path from {topology.node_ids[source]} to {topology.node_ids[target]} in {topology.spec}"
    raise InvalidInput("every node must have a path to every other", names, "add links or remove the node")


def _is_balanced(topology: Topology) -> bool:
    """Whether as many links leave each node as enter it.

    Then as many leave each set of nodes as enter it: what every node has a path to has a path to every node.
    """
    src, dst = (np.bincount(ends, minlength=topology.node_count) for ends in (topology.links.src, topology.links.dst))
    return bool(np.array_equal(src, dst))


def _reaches_all(topology: Topology) -> bool:
    """Whether node 0 reaches every node and is reached by every node, by sweeps over plain lists."""
    ends = topology.links.src.tolist(), topology.links.dst.tolist()
    return all(
        len(reached_from(0, neighbours_of(*way, topology.node_count))) == topology.node_count
        for way in (ends, ends[::-1])
    )


def neighbours_of(src: Sequence[int], dst: Sequence[int], nodes: int) -> list[list[int]]:
    """Return, for each node, the nodes that the arcs from `src` to `dst` lead to from it."""
    neighbours: list[list[int]] = [[] for _ in range(nodes)]
    for source, target in zip(src, dst, strict=True):
        neighbours[source].append(target)
    return neighbours


def reached_from(start: int, neighbours: Sequence[Sequence[int]]) -> dict[int, int]:
    """Return the nodes with a path from `start`, and the arcs of the shortest, the nearest first. O(nodes + arcs)."""
    hops = {start: 0}
    waiting = [start]
    for node in waiting:
        for other in neighbours[node]:
            if other not in hops:
                hops[other] = hops[node] + 1
                waiting.append(other)
    return hops


def _first_unreached(topology: Topology, arcs: Arcs) -> int:
    """Return the first node to which no `arcs` lead from node 0, -1 if there is none. O(nodes + links)."""
    hops = np.full((1, topology.node_count), _UNREACHED, dtype=np.uint32)
    search_from(*arcs, np.zeros(1, dtype=np.int64), _UNREACHED, hops)
    missing = np.flatnonzero(hops[0] == _UNREACHED)
    return int(missing[0]) if len(missing) else -1


Arcs = tuple[NDArray[np.int64], NDArray[np.int32]]
"""Offsets and neighbours: `neighbours[offsets[v] : offsets[v + 1]]` are one link away from node v."""


def arcs_backward(topology: Topology) -> Arcs:
    """Return the arcs along which `hops_along` counts hops to its starts."""
    return topology.links.incoming_offsets(topology.node_count), topology.links.src


def arcs_forward(topology: Topology) -> Arcs:
    """Return the arcs along which `hops_along` counts hops from its starts. O(L log L)."""
    links = topology.links
    order = np.argsort(links.src, kind="stable")
    offsets = np.searchsorted(links.src[order], np.arange(topology.node_count + 1)).astype(np.int64)
    return offsets, links.dst[order]


def hops_along(topology: Topology, arcs: Arcs, starts: NDArray[np.integer]) -> Distances:
    """Return hops[starts, N]: entry [i, v] is the number of `arcs` from `starts[i]` to node v. O(starts * links)."""
    hops_type = np.uint16 if topology.node_count < 2**16 else np.uint32
    unreached = hops_type(np.iinfo(hops_type).max)
    distances = np.full((len(starts), topology.node_count), unreached, dtype=hops_type)
    search_from(*arcs, np.asarray(starts, dtype=np.int64), int(unreached), distances)
    if np.any(distances == unreached):
        require_strongly_connected(topology)
    return distances


Bits = NDArray[np.uint64]

_WORDS = 4
_AT_ONCE = 64 * _WORDS


def diameter(topology: Topology) -> int:
    """Return the largest distance in links between two compute nodes.

    Nodes that known symmetries (each checked) take to one another are equally far from their farthest node, so one
    of them is looked at. Searches there and back from chosen nodes bound how far the others can be, by the
    triangle inequality: a handful suffice on grids and rings. They go on until they have cost as much as searching
    from all nodes that are left would, 256 at a time as bits; then that is done. At worst O(nodes / 256 * diameter *
    links) time; O(nodes) memory.
    Sources: Takes and Kosters, "Computing the eccentricity distribution of large graphs", for directed graphs; Then et
    al., "The more the merrier: efficient multi-source graph traversal".
    """
    orbit = checked_orbits(topology)[: topology.compute_count]
    candidates = np.unique(orbit, return_index=True)[1]
    forward, backward = arcs_forward(topology), arcs_backward(topology)
    largest = int(_hops(topology, forward, candidates[0]).max())
    most = np.full(topology.compute_count, np.iinfo(np.int64).max)  # bounds on how far each node's farthest node is
    least = np.zeros(topology.compute_count, dtype=np.int64)
    most[candidates[0]] = largest
    searches = 0
    while (candidates := candidates[most[candidates] > largest]).size:
        if searches > -(-len(candidates) // _AT_ONCE) * largest:
            return max(largest, largest_distance(topology, candidates))
        far = searches % 4 == 0
        node = candidates[np.argmax(most[candidates])] if far else candidates[np.argmin(least[candidates])]
        there, back = _hops(topology, forward, node), _hops(topology, backward, node)
        searches += 2
        farthest = int(there.max())
        largest = max(largest, farthest, int(back.max()))
        most = np.minimum(most, back + farthest)
        least = np.maximum(least, np.maximum(back, farthest - there))
        most[node] = farthest
    return largest


def _hops(topology: Topology, arcs: Arcs, node: int) -> NDArray[np.int64]:
    """Return int64[compute nodes]: hops along `arcs` from `node`."""
    return hops_along(topology, arcs, np.array([node]))[0, : topology.compute_count].astype(np.int64)


def largest_distance(topology: Topology, starts: NDArray[np.integer]) -> int:
    """Return the largest distance from any of `starts` to any compute node. O(starts / 256 * diameter * links)."""
    blocks = np.array_split(starts.astype(np.int64), -(-len(starts) // _AT_ONCE))
    backward = arcs_backward(topology)
    return max(int(_farthest(*backward, block, topology.compute_count)) for block in blocks)


@compiled
def _farthest(
    offsets: NDArray[np.int64], sources: NDArray[np.int32], starts: NDArray[np.int64], compute_count: int
) -> int:
    """Return the largest distance from `starts`, at most `_AT_ONCE`, to nodes below `compute_count`.

    Every node has a bit for each start: whether it is reached. A node reached in a round hands its new bits on in
    the next. `sources[offsets[v] : offsets[v + 1]]` are the tails of the links into v.
    """
    nodes = len(offsets) - 1
    everyone = np.zeros(_WORDS, dtype=np.uint64)
    reached = np.zeros((nodes, _WORDS), dtype=np.uint64)
    fresh = np.zeros((nodes, _WORDS), dtype=np.uint64)
    following = np.zeros((nodes, _WORDS), dtype=np.uint64)
    for index in range(len(starts)):
        bit = np.uint64(1) << np.uint64(index % 64)
        everyone[index // 64] |= bit
        reached[starts[index], index // 64] |= bit
        fresh[starts[index], index // 64] |= bit
    rounds = farthest = 0
    going = True
    while going:
        going = False
        rounds += 1
        following[:] = np.uint64(0)
        for node in range(nodes):
            tails = sources[offsets[node] : offsets[node + 1]]
            if _lacks(everyone, reached[node]) and _receives(tails, fresh, reached[node], following[node]):
                going = True
                if node < compute_count:
                    farthest = rounds
        fresh, following = following, fresh
    return farthest


@inlined
def _lacks(everyone: Bits, reached: Bits) -> bool:
    missing = np.uint64(0)
    for word in range(_WORDS):
        missing |= everyone[word] & ~reached[word]
    return bool(missing != np.uint64(0))


@inlined
def _receives(tails: NDArray[np.int32], fresh: Matrix[np.uint64], reached: Bits, following: Bits) -> bool:
    """Write to `following`, 0 before, the nodes that newly reach a node over `tails`; return whether any do."""
    for tail in tails:
        for word in range(_WORDS):
            following[word] |= fresh[tail, word]
    any_new = np.uint64(0)
    for word in range(_WORDS):
        following[word] &= ~reached[word]
        reached[word] |= following[word]
        any_new |= following[word]
    return bool(any_new != np.uint64(0))
