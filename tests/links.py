"""Networks as multisets of links, to compare with references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import networkx as nx

from chorale.synth.topology.topology import Topology

Pairs = Counter[tuple[int, int]]


def links_of(topology: Topology) -> Pairs:
    """Return how many links lead from each node to each other."""
    return Counter(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))


def both_directions(edges: Iterable[tuple[int, int]]) -> Pairs:
    """Return the links of undirected `edges`."""
    return Counter(link for u, v in edges for link in ((u, v), (v, u)))


def graph_of(topology: Topology) -> nx.MultiDiGraph[Any]:
    """Return the bare graph of `topology` on its ranks."""
    graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
    graph.add_nodes_from(range(topology.node_count))
    graph.add_edges_from(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    return graph
