"""Checks whether node renamings map links onto links; finds orbits under symmetries, and connected components."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.topology import Links, Topology


def connected_labels(count: int, src: NDArray[np.integer], dst: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return the number (int32) of the connected component that each node is in. Edge i joins `src[i]` and `dst[i]`.

    Components are numbered from 0 in the order of their smallest nodes. Measured time: O((count + edges) log count),
    even on long rings.
    """
    first, before = np.arange(count), None
    while before is None or np.any(first != before):
        before = first.copy()
        np.minimum.at(first, dst, first[src])
        np.minimum.at(first, src, first[dst])
        first = first[first]
    return np.unique(first, return_inverse=True)[1].astype(np.int32)


def is_automorphism(topology: Topology, permutation: NDArray[np.integer]) -> bool:
    """Return whether `permutation` is a symmetry: it maps links one to one onto links of equal bandwidth and latency.

    Node v moves to `permutation[v]`. Nodes must keep their kind, and switches their abilities. The check is exact. O(L
    log L).
    """
    return carries(topology, topology, permutation)


def carries(source: Topology, target: Topology, new_node: NDArray[np.integer]) -> bool:
    """Return whether renaming each node v of `source` to `new_node[v]` gives `target`'s links and preserves node kinds.

    Switches must keep their abilities. The check is exact. O(L log L).
    """
    image = np.asarray(new_node)
    nodes, ranks = target.node_count, target.compute_count
    if not have_equal_tables(source, target) or image.shape != (nodes,):
        return False
    if not np.array_equal(np.sort(image), np.arange(nodes)) or np.any(image[:ranks] >= ranks):
        return False
    if {int(image[node]): ability for node, ability in source.abilities.items()} != dict(target.abilities):
        return False
    moved = _link_keys(source.links, image.astype(np.int64))
    return bool(np.array_equal(np.sort(moved), _sorted_link_keys(target.links, nodes)))


def have_equal_tables(source: Topology, target: Topology) -> bool:
    """Return whether counts, units and tables of rates are equal, so that link classes can be compared directly."""
    return all(
        (
            source.compute_count == target.compute_count,
            source.node_count == target.node_count,
            source.bandwidth_unit == target.bandwidth_unit,
            len(source.links) == len(target.links),
            source.links.bandwidths == target.links.bandwidths,
            source.links.latencies_s == target.links.latencies_s,
        )
    )


def link_kinds(links: Links) -> NDArray[np.int64]:
    """Return, for each link, a number (int64) that identifies its combination of bandwidth and latency."""
    return links.bandwidth_class.astype(np.int64) * len(links.latencies_s) + links.latency_class


def _link_keys(links: Links, image: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each link, a number (int64) that identifies its two renamed ends, bandwidth and latency."""
    kinds = len(links.bandwidths) * len(links.latencies_s)
    return (image[links.dst] * len(image) + image[links.src]) * kinds + link_kinds(links)


@lru_cache(maxsize=2)
def _sorted_link_keys(links: Links, nodes: int) -> NDArray[np.int64]:
    """Return the keys (see `_link_keys`) of all links, sorted. Cached, because many symmetries are checked."""
    keys = np.sort(_link_keys(links, np.arange(nodes)))
    keys.flags.writeable = False
    return keys


def orbits(node_count: int, permutations: Sequence[NDArray[np.integer]]) -> NDArray[np.int32]:
    """Return each node's orbit number (int32). An orbit contains the nodes that `permutations` map to one another."""
    src = np.tile(np.arange(node_count), len(permutations))
    dst = np.concatenate([np.arange(0), *permutations])
    return connected_labels(node_count, src, dst)


@lru_cache(maxsize=2)
def checked_orbits(topology: Topology) -> NDArray[np.int32]:
    """Return the number of each node's orbit (int32, read-only) under known symmetries that `is_automorphism` confirms.

    An orbit contains the nodes that symmetries map to one another. Cached, because several methods use the orbits of
    the same topology. O(generators * L log degree).
    """
    checked = [generator for generator in topology.automorphisms if is_automorphism(topology, generator)]
    orbit = orbits(topology.node_count, checked)
    orbit.flags.writeable = False
    return orbit


def automorphisms_are_transitive(topology: Topology) -> bool:
    """Return whether known symmetries that `is_automorphism` confirms map every compute node to every other one.

    False proves nothing, because the topology may have symmetries that are not known. O(generators * L log degree).
    """
    orbit = checked_orbits(topology)[: topology.compute_count]
    return bool(topology.automorphisms) and bool(np.all(orbit == orbit[0]))
