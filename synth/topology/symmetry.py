"""Whether a topology is vertex-transitive, and whether a small one is isomorphic to its transpose."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.lazy_modules import isomorphism
from chorale.synth.lazy_modules import networkx as nx
from chorale.synth.topology.automorphism import automorphisms_are_transitive, is_automorphism, orbits
from chorale.synth.topology.distance import distances_from, distances_to
from chorale.synth.topology.symmetry_search import transitive_symmetries
from chorale.synth.topology.topology import Topology, transpose

_PROFILE_WORK = 2**28
_SEARCH_NODES = 64
_SEARCH_LINKS = 1024
SEARCH_STEPS = 100_000


def is_vertex_transitive(topology: Topology, search_steps: int = SEARCH_STEPS) -> bool | None:
    """Whether every compute node can be taken to every other by a symmetry; None if undecided.

    Parallel links, bandwidths, latencies and switches count. True from the symmetries that the topology carries,
    each checked, or that are found; False when nodes differ in their links or distances; else an exact search on small
    networks (up to 64 nodes and 1024 links, at most `search_steps` comparisons). O(N L) in the middle case.
    """
    if automorphisms_are_transitive(topology):
        return True
    if _ports_differ(topology) or _distances_are_told_apart(topology):
        return False
    if topology.switch_count == 0 and transitive_symmetries(topology):
        return True
    if topology.node_count > _SEARCH_NODES or len(topology.links) > _SEARCH_LINKS:
        return None
    try:
        return _search(topology, search_steps)
    except _OutOfStepsError:
        return None


def _ports_differ(topology: Topology) -> bool:
    """Whether two compute nodes differ in the number of links in or out of some bandwidth and latency."""
    links = topology.links
    classes = links.bandwidth_class.astype(np.int64) * len(links.latencies_s) + links.latency_class
    for ends in (links.src, links.dst):
        ports = np.bincount(ends, minlength=topology.node_count)[: topology.compute_count]
        if np.any(ports != ports[0]):
            return True
        by_node = classes[np.lexsort((classes, ends))][: ports.sum()]
        if _rows_differ(by_node.reshape(topology.compute_count, -1)):
            return True
    return False


def _distances_are_told_apart(topology: Topology) -> bool:
    """Whether distances differ, as far as they are looked at: on networks that are not too large."""
    return topology.node_count * len(topology.links) <= _PROFILE_WORK and _distances_differ(topology)


def _distances_differ(topology: Topology) -> bool:
    """Whether two compute nodes have other numbers of nodes at some distance, in or out, by kind."""
    compute = np.arange(topology.compute_count)
    for block in np.array_split(compute, -(-len(compute) // 1024)):
        first = np.concatenate([compute[:1], block])
        for search in (distances_to, distances_from):
            hops = np.asarray(search(topology, first))
            for part in (hops[:, : topology.compute_count], hops[:, topology.compute_count :]):
                if _rows_differ(np.sort(part, axis=1)):
                    return True
    return False


def _rows_differ(rows: NDArray[Any]) -> bool:
    return bool(np.any(rows != rows[0]))


class _OutOfStepsError(Exception):
    """A search has used up its comparisons."""


class _Budget:
    """Counts the comparisons of one search, which are its steps; no clock is needed to bound it."""

    def __init__(self, steps: int) -> None:
        self.remaining = steps

    def equal(self, first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
        """Compare the labels of two nodes or edges."""
        self.remaining -= 1
        if self.remaining < 0:
            raise _OutOfStepsError
        return bool(first["label"] == second["label"])


def _search(topology: Topology, steps: int) -> bool:
    """Look for symmetries from node 0 to every compute node that those found so far do not reach."""
    generators = [generator for generator in topology.automorphisms if is_automorphism(topology, generator)]
    budget = _Budget(steps)
    graphs = {node: _rooted(topology, node) for node in range(topology.compute_count)}
    for node in range(1, topology.compute_count):
        orbit = orbits(topology.node_count, generators)
        if orbit[node] == orbit[0]:
            continue
        matcher = isomorphism.DiGraphMatcher(graphs[0], graphs[node], node_match=budget.equal, edge_match=budget.equal)
        mapping = next(matcher.isomorphisms_iter(), None)
        if mapping is None:
            return False
        generators.append(np.array([mapping[source] for source in range(topology.node_count)], dtype=np.int32))
    return True


def _rooted(topology: Topology, root: int) -> nx.DiGraph[int]:
    """Return the network with parallel links merged into labels, and nodes labelled by kind and distances to `root`."""
    links = topology.links
    there = distances_from(topology, np.array([root]))[0]
    back = distances_to(topology, np.array([root]))[0]
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(topology.node_count):
        graph.add_node(node, label=(topology.node_kind(node), int(there[node]), int(back[node])))
    labels: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for link in range(len(links)):
        ends = (int(links.src[link]), int(links.dst[link]))
        labels.setdefault(ends, []).append((int(links.bandwidth_class[link]), int(links.latency_class[link])))
    for (src, dst), label in labels.items():
        graph.add_edge(src, dst, label=sorted(label))
    return graph


MAX_SEARCH_NODES = 64
_MAX_COMPARISONS = 100_000


def reverse_symmetry(topology: Topology) -> NDArray[np.int32] | None:
    """Return a rank of the transpose for each rank of `topology`, taking links onto links; None if none is found.

    Exact on direct-connect networks of up to 64 nodes, as long as 100,000 comparisons are enough; larger ones are not
    searched. Parallel links, bandwidths and latencies count.
    """
    if topology.node_count > MAX_SEARCH_NODES or topology.switch_count:
        return None
    budget = _Budget(_MAX_COMPARISONS)
    mirrored = transpose(topology)
    graphs = [_graph(topology, mirrored), _graph(mirrored, topology)]
    matcher = isomorphism.DiGraphMatcher(graphs[0], graphs[1], node_match=budget.equal, edge_match=budget.equal)
    try:
        image = next(matcher.isomorphisms_iter(), None)
    except _OutOfStepsError:
        return None
    return None if image is None else np.array([image[rank] for rank in range(topology.node_count)], dtype=np.int32)


def _graph(topology: Topology, transpose: Topology) -> nx.DiGraph[int]:
    """Return the network with parallel links merged into labels, nodes labelled by their hop counts from and to all."""
    links, nodes = topology.links, np.arange(topology.node_count)
    profiles = [np.sort(np.asarray(distances_from(network, nodes)), axis=1) for network in (topology, transpose)]
    graph: nx.DiGraph[int] = nx.DiGraph()
    for node in range(topology.node_count):
        graph.add_node(node, label=tuple(profile[node].tobytes() for profile in profiles))
    labels: dict[tuple[int, int], list[Hashable]] = {}
    for link in links:
        labels.setdefault((link.src, link.dst), []).append((link.bandwidth, link.latency_s))
    for (src, dst), label in labels.items():
        graph.add_edge(src, dst, label=label)
    return graph
