"""Is a small network reverse-symmetric: the same as its transpose under other names of the nodes?"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import networkx as nx
import numpy as np
from networkx.algorithms.isomorphism import DiGraphMatcher
from numpy.typing import NDArray

from chorale.synth.topology.distance import distances_from
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose

MAX_SEARCH_NODES = 64
_MAX_COMPARISONS = 100_000


class _OutOfStepsError(Exception):
    """The search has used up its comparisons."""


def reverse_symmetry(topology: Topology) -> NDArray[np.int32] | None:
    """Return a rank of the transpose for each rank of `topology`, taking links onto links; None if none is found.

    Exact on direct-connect networks of up to 64 nodes, as long as 100,000 comparisons are enough; larger ones are not
    searched. Parallel links, bandwidths and latencies count.
    """
    if topology.node_count > MAX_SEARCH_NODES or topology.switch_count:
        return None
    left = _MAX_COMPARISONS

    def equal(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
        nonlocal left
        left -= 1
        if left < 0:
            raise _OutOfStepsError
        return bool(first["label"] == second["label"])

    mirrored = transpose(topology)
    graphs = [_graph(topology, mirrored), _graph(mirrored, topology)]
    matcher = DiGraphMatcher(graphs[0], graphs[1], node_match=equal, edge_match=equal)
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
