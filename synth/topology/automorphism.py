"""Symmetries of a topology: checking one, and whether the known ones take every compute node to every other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from synth.topology.topology import Topology


def is_automorphism(topology: Topology, permutation: NDArray[np.integer]) -> bool:
    """Whether `permutation` maps links onto links of equal bandwidth and latency, as many of each as there are.

    `permutation[v]` is the image of node v, for all nodes; where there are no switches, that is for all compute
    nodes. Nodes must keep their kind. Exact. O(L log L).
    """
    node_count = topology.node_count
    image = np.asarray(permutation)
    if image.shape != (node_count,) or not np.array_equal(np.sort(image), np.arange(node_count)):
        return False
    if np.any(image[: topology.compute_count] >= topology.compute_count):
        return False
    links = topology.links
    columns = (image[links.src], image[links.dst], links.bandwidth_class, links.latency_class)
    order = np.lexsort((columns[3], columns[2], columns[0], columns[1]))
    own = np.lexsort((links.latency_class, links.bandwidth_class, links.src, links.dst))
    originals = (links.src, links.dst, links.bandwidth_class, links.latency_class)
    return all(
        np.array_equal(column[order], original[own]) for column, original in zip(columns, originals, strict=True)
    )


def orbits(node_count: int, permutations: Sequence[NDArray[np.integer]]) -> NDArray[np.int32]:
    """Return int32 per node: equal for nodes that products of `permutations` take to one another."""
    src = np.tile(np.arange(node_count), len(permutations))
    dst = np.concatenate([np.arange(0), *permutations])
    graph = coo_array((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(node_count, node_count))
    return connected_components(graph, directed=False)[1]


def checked_orbits(topology: Topology) -> NDArray[np.int32]:
    """Return int32 per node: equal for nodes that the known symmetries, each checked, take to one another.

    O(generators * L log L).
    """
    checked = [generator for generator in topology.automorphisms if is_automorphism(topology, generator)]
    return orbits(topology.node_count, checked)


def known_symmetries_are_transitive(topology: Topology) -> bool:
    """Whether the symmetries that `topology` carries, each checked, take every compute node to every other.

    False says nothing: the topology may have symmetries that nobody told it. O(generators * L log L).
    """
    orbit = checked_orbits(topology)[: topology.compute_count]
    return bool(topology.automorphisms) and bool(np.all(orbit == orbit[0]))
