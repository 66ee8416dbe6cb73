"""Topologies from and to NetworkX graphs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import networkx as nx
import numpy as np

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.assemble import NamedLink, NamedNode, assemble_topology
from chorale.synth.topology.topology import Topology


def from_networkx(graph: nx.Graph[Any], spec: str = "networkx") -> Topology:
    """Return the checked topology of `graph`; an undirected edge is a link in both directions.

    Node attribute `kind` (compute unless given); edge attributes `bandwidth` (all edges have it, or none has it,
    which means 1 link), `latency_s` (0 unless given) and `bidirectional`; graph attribute `bandwidth_unit`
    ("link" unless given). Other attributes are ignored. Nodes are ranked in the order of `graph.nodes`.
    """
    unit = graph.graph.get("bandwidth_unit", "link")
    if all("bandwidth" not in data for _, _, data in graph.edges(data=True)):
        if unit != "link":
            rule = f"every edge must have a bandwidth where the bandwidth_unit is {unit}"
            raise InvalidInput(rule, "a graph without any", "add the attribute bandwidth to the edges")
        default_bandwidth: Fraction | None = Fraction(1)
    else:
        default_bandwidth = None
    nodes = [NamedNode(_name(node), data.get("kind", "compute")) for node, data in graph.nodes(data=True)]
    return assemble_topology(spec, unit, nodes, list(_links(graph, default_bandwidth)))


def to_networkx(topology: Topology) -> nx.MultiDiGraph[str]:
    """Return `topology` as a graph on node ids, with the attributes that `from_networkx` reads.

    `bandwidth` and `latency_s` are ints where they are whole, else Fractions; the key of an edge is its index
    among parallel links.
    """
    ids = topology.node_ids
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=topology.spec, bandwidth_unit=topology.bandwidth_unit)
    for node, name in enumerate(ids):
        graph.add_node(name, kind=topology.node_kind(node))
    for link, key in zip(topology.links, topology.links.parallel_index(), strict=True):
        graph.add_edge(
            ids[link.src],
            ids[link.dst],
            key=int(key),
            bandwidth=_plain(link.bandwidth),
            latency_s=_plain(link.latency_s),
        )
    return graph


def _links(graph: nx.Graph[Any], default_bandwidth: Fraction | None) -> Iterator[NamedLink]:
    undirected = not graph.is_directed()
    for src, dst, data in graph.edges(data=True):
        bidirectional = data.get("bidirectional", False)
        if not isinstance(bidirectional, bool):
            where = f"bidirectional of edge {src} to {dst}"
            raise InvalidInput(f"{where} must be true or false", repr(bidirectional), "correct it")
        if "bandwidth" not in data and default_bandwidth is None:
            rule = "every edge must have a bandwidth where some have one"
            raise InvalidInput(rule, f"edge {src} to {dst} without one", "add the attribute bandwidth to the edge")
        bandwidth = _exact(data.get("bandwidth", default_bandwidth))
        latency_s = _exact(data.get("latency_s", 0))
        yield NamedLink(_name(src), _name(dst), bandwidth, latency_s, bidirectional or undirected)


def _name(node: object) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, (int, np.integer)) and not isinstance(node, bool):
        return str(node)
    way_out = "relabel the nodes, for example with networkx.convert_node_labels_to_integers"
    raise InvalidInput("a node of a graph must be a str or an int", repr(node), way_out)


def _exact(value: object) -> object:
    """Return NumPy numbers as Python's own; anything else as it is."""
    return value.item() if isinstance(value, np.number) else value


def _plain(value: Fraction) -> int | Fraction:
    return int(value) if value.denominator == 1 else value
