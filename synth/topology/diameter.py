"""The diameter of a topology, without the distances of all pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chorale.synth.compiled import compiled, inlined
from chorale.synth.topology.automorphism import checked_orbits
from chorale.synth.topology.distance import Arcs, arcs_backward, arcs_forward, hops_along
from chorale.synth.topology.topology import Topology

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
def _receives(tails: NDArray[np.int32], fresh: Bits, reached: Bits, following: Bits) -> bool:
    """Write to `following`, 0 before, what a node is reached from over `tails` for the first time; return if any."""
    for tail in tails:
        for word in range(_WORDS):
            following[word] |= fresh[tail, word]
    found = np.uint64(0)
    for word in range(_WORDS):
        following[word] &= ~reached[word]
        reached[word] |= following[word]
        found |= following[word]
    return bool(found != np.uint64(0))
