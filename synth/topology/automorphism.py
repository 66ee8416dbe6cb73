"""Symmetries of a topology: check one, and whether those attached take every compute node to every other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels.compiled import compiled, inlined
from chorale.synth.topology.components import connected_labels
from chorale.synth.topology.links import Links
from chorale.synth.topology.topology import Topology

_FEW = 32
"""So many numbers are sorted by insertion, which takes less than a call of the library."""


def is_automorphism(topology: Topology, permutation: NDArray[np.integer]) -> bool:
    """Whether `permutation` maps links onto links of equal bandwidth and latency, as many of each as there are.

    `permutation[v]` is the image of node v, for all nodes; where there are no switches, that is for all compute
    nodes. Nodes must keep their kind, switches what they can do. Exact. O(L log degree).
    """
    node_count = topology.node_count
    image = np.asarray(permutation)
    if image.shape != (node_count,) or not np.array_equal(np.sort(image), np.arange(node_count)):
        return False
    if np.any(image[: topology.compute_count] >= topology.compute_count):
        return False
    if any(topology.abilities.get(int(image[node])) != ability for node, ability in topology.abilities.items()):
        return False
    offsets, kinds = _incoming_kinds(topology.links, node_count)
    most = len(topology.links.bandwidths) * len(topology.links.latencies_s)
    return bool(_keeps_links(offsets, topology.links.src, kinds, most, image.astype(np.int64)))


@lru_cache(maxsize=2)
def _incoming_kinds(links: Links, node_count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where the links into each node begin, and a number per link for its bandwidth and latency.

    The last ones are remembered, since a topology has many symmetries; read-only.
    """
    kinds = links.bandwidth_class.astype(np.int64) * len(links.latencies_s) + links.latency_class
    offsets = links.incoming_offsets(node_count)
    for column in (offsets, kinds):
        column.flags.writeable = False
    return offsets, kinds


@compiled
def _keeps_links(
    offsets: NDArray[np.int64],
    sources: NDArray[np.int32],
    kinds: NDArray[np.int64],
    most: int,
    image: NDArray[np.int64],
) -> bool:
    """Whether the links into every node, moved by `image`, are those into the node's image; kinds are below `most`."""
    widest = np.diff(offsets).max()
    moved, there = np.empty(widest, dtype=np.int64), np.empty(widest, dtype=np.int64)
    for node in range(len(image)):
        start, other = offsets[node], offsets[image[node]]
        degree = offsets[node + 1] - start
        if offsets[image[node] + 1] - other != degree:
            return False
        for index in range(degree):
            moved[index] = image[sources[start + index]] * most + kinds[start + index]
            there[index] = sources[other + index] * most + kinds[other + index]
        _sort(moved[:degree])
        _sort(there[:degree])
        for index in range(degree):
            if moved[index] != there[index]:
                return False
    return True


@inlined
def _sort(values: NDArray[np.int64]) -> None:
    if len(values) > _FEW:
        values.sort()
        return
    for end in range(1, len(values)):
        value, position = values[end], end
        while position > 0 and values[position - 1] > value:
            values[position] = values[position - 1]
            position -= 1
        values[position] = value


def orbits(node_count: int, permutations: Sequence[NDArray[np.integer]]) -> NDArray[np.int32]:
    """Return int32 per node: equal for nodes that products of `permutations` take to one another."""
    src = np.tile(np.arange(node_count), len(permutations))
    dst = np.concatenate([np.arange(0), *permutations])
    return connected_labels(node_count, src, dst)


@lru_cache(maxsize=2)
def checked_orbits(topology: Topology) -> NDArray[np.int32]:
    """Return int32 per node: equal for nodes that the known symmetries, each checked, take to one another.

    The last ones are remembered, since many ask for those of one topology; read-only. O(generators * L log degree).
    """
    checked = [generator for generator in topology.automorphisms if is_automorphism(topology, generator)]
    orbit = orbits(topology.node_count, checked)
    orbit.flags.writeable = False
    return orbit


def automorphisms_are_transitive(topology: Topology) -> bool:
    """Whether the symmetries that `topology` carries, each checked, take every compute node to every other.

    False is no proof: the topology may have symmetries that are not attached to it. O(generators * L log degree).
    """
    orbit = checked_orbits(topology)[: topology.compute_count]
    return bool(topology.automorphisms) and bool(np.all(orbit == orbit[0]))
