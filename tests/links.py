"""Networks as multisets of links, to compare with references, and small networks written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np

from chorale.synth.topology.topology import Link, Links, Topology

Pairs = Counter[tuple[int, int]]


def links_of(topology: Topology) -> Pairs:
    """Return how many links lead from each node to each other."""
    return Counter(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))


def both_directions(edges: Iterable[tuple[int, int]]) -> Pairs:
    return Counter(link for u, v in edges for link in ((u, v), (v, u)))


def graph_of(topology: Topology) -> nx.MultiDiGraph[Any]:
    """Return the bare graph of `topology` on its ranks."""
    graph: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
    graph.add_nodes_from(range(topology.node_count))
    graph.add_edges_from(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
    return graph


def rates_of(topology: Topology) -> dict[tuple[str, str], Fraction]:
    """Return the bandwidth from node to node by their ids, parallel links together."""
    total: Counter[tuple[str, str]] = Counter()
    for link in topology.links:
        total[topology.node_ids[link.src], topology.node_ids[link.dst]] += link.bandwidth
    return dict(total)


Row = tuple[Any, ...]


def network(ranks: int, switches: int, rows: Iterable[Row]) -> Topology:
    """Return a network of rows of source, destination, bandwidth and, where there is one, latency in seconds."""
    links = [Link(src, dst, Fraction(width), Fraction(*late or (0,))) for src, dst, width, *late in rows]
    names = tuple(map(str, range(ranks + switches)))
    return Topology("edge", names, ranks, Links.build(links), "GB/s")


def both(*rows: Row) -> list[Row]:
    return [row for src, dst, *rest in rows for row in ((src, dst, *rest), (dst, src, *rest))]


def topology_document(
    ranks: Iterable[str], rows: Iterable[Row], switches: Mapping[str, Any] | None = None, both_ways: bool = True
) -> dict[str, Any]:
    """Return a topology file in GB/s of rows as those of `network`, by ids. switches: by id, with what they can do"""
    nodes = [{"id": rank, "kind": "compute"} for rank in ranks]
    nodes += [{"id": name, "kind": "switch", **abilities} for name, abilities in (switches or {}).items()]
    names = ("src", "dst", "bandwidth", "latency_s")
    links = [{**dict(zip(names, row, strict=False)), "bidirectional": both_ways} for row in rows]
    head = {"format": "chorale-topology/1", "name": "given", "bandwidth_unit": "GB/s"}
    return {**head, "nodes": nodes, "links": links}


def order_of(generators: tuple[np.ndarray, ...], nodes: int) -> int:
    """Return how many products of `generators` there are."""
    reached = {tuple(range(nodes))}
    new = list(reached)
    while new:
        member = new.pop()
        images = {tuple(generator[list(member)].tolist()) for generator in generators} - reached
        reached |= images
        new += images
    return len(reached)
