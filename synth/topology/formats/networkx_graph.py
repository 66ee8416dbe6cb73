"""Converts topologies to and from NetworkX graphs and GraphML, with the same attribute names as the JSON format.

Untrusted XML is parsed without expanding or fetching any entities.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import numpy as np
from defusedxml.common import DefusedXmlException

from chorale.synth.document_limits import require_shallow, require_small_xml
from chorale.synth.errors import InvalidInput
from chorale.synth.lazy_modules import networkx as nx
from chorale.synth.topology.check import ABILITY_KEYS, NamedLink, NamedNode, assemble_topology, first_repeated
from chorale.synth.topology.formats.json_document import ability_members
from chorale.synth.topology.topology import Topology


def parse_xml(content: bytes, what: str) -> Element:
    """Return the root element of `content`. In errors, `what` names the kind of file, such as "a GraphML file".

    Raises InvalidInput for malformed XML, document types, entities and external references.
    """
    require_small_xml(content, what)
    try:
        root: Element = defusedxml.ElementTree.fromstring(content, forbid_dtd=True)
    except DefusedXmlException as error:
        value = type(error).__name__
        raise InvalidInput("this XML file has a DOCTYPE or entities: {}", value, "remove the DOCTYPE") from None
    except (ParseError, ValueError, LookupError) as error:
        raise InvalidInput(f"{what} is not well-formed XML: {{}}", error, "correct the file") from None
    require_shallow(root, what)
    return root


def tag_of(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def from_networkx(graph: nx.Graph[Any], spec: str = "networkx") -> Topology:
    """Return the checked topology described by `graph`; an undirected edge means one link in each direction.

    Node attributes: `kind` (default "compute"); for switches also `multicast`, `reduce`, `reduce_bandwidth`,
    `reduce_types` and `reduce_operations` (comma-separated). Edge attributes: `bandwidth` (on all edges, or on none if
    all have bandwidth 1), `latency_s` (default 0) and `bidirectional`. Graph attribute: `bandwidth_unit` (default
    "link"). Other attributes are ignored. Nodes are ranked in the order of `graph.nodes`.
    """
    unit = graph.graph.get("bandwidth_unit", "link")
    if all("bandwidth" not in data for _, _, data in graph.edges(data=True)):
        if unit != "link":
            rule = f"the bandwidth_unit is {unit}, but the edges have no bandwidth"
            raise InvalidInput(rule, "", "add the attribute bandwidth to the edges")
        default_bandwidth: Fraction | None = Fraction(1)
    else:
        default_bandwidth = None
    nodes = [
        NamedNode(_name(node), data.get("kind", "compute"), {key: data[key] for key in ABILITY_KEYS if key in data})
        for node, data in graph.nodes(data=True)
    ]
    return assemble_topology(spec, unit, nodes, list(_links(graph, default_bandwidth)))


def to_networkx(topology: Topology) -> nx.MultiDiGraph[str]:
    """Return `topology` as a graph of node ids, with the attributes that `from_networkx` reads.

    `bandwidth` and `latency_s` are ints if they are whole numbers, otherwise Fractions. The key of an edge is its index
    among parallel links.
    """
    ids = topology.node_ids
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph(name=topology.spec, bandwidth_unit=topology.bandwidth_unit)
    for node, name in enumerate(ids):
        abilities = ability_members(topology, node, number=_plain, names=",".join)
        graph.add_node(name, kind=topology.node_kind(node), **abilities)
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
            rule = "some edges have a bandwidth and others do not: {}"
            raise InvalidInput(rule, f"edge {src} to {dst} has none", "add the attribute bandwidth to the edge")
        bandwidth = _exact(data.get("bandwidth", default_bandwidth))
        latency_s = _exact(data.get("latency_s", 0))
        yield NamedLink(_name(src), _name(dst), bandwidth, latency_s, bidirectional or undirected)


def _name(node: object) -> str:
    if isinstance(node, str):
        return node
    if isinstance(node, (int, np.integer)) and not isinstance(node, bool):
        return str(node)
    way_out = "relabel the nodes, for example with networkx.convert_node_labels_to_integers"
    raise InvalidInput("the nodes of a graph must be str or int", repr(node), way_out)


def _exact(value: object) -> object:
    return value.item() if isinstance(value, np.number) else value


def _plain(value: Fraction) -> int | Fraction:
    return int(value) if value.denominator == 1 else value


_WAY_OUT = "correct the file"


def from_graphml_root(root: Element, spec: str) -> Topology:
    """Return the checked topology in a GraphML file with this root element. Attributes are as in `from_networkx`.

    Default values of GraphML keys apply. Raises InvalidInput for other XML and for invalid networks.
    """
    if tag_of(root) != "graphml":
        raise InvalidInput(
            "an XML topology must be GraphML, this is {}", f"a file of <{root.tag}>", "convert it to GraphML or JSON"
        )
    # Reject what NetworkX would silently repair: repeated nodes, and links of nodes that do not exist
    nodes = [element.get("id", "") for element in root.iter() if tag_of(element) == "node"]
    ids = set(nodes)
    repeated = first_repeated(nodes)
    if repeated is not None:
        raise InvalidInput("two nodes have the id {}", repeated, "rename one of them")
    for element in root.iter():
        ends = (element.get("source", ""), element.get("target", "")) if tag_of(element) == "edge" else ()
        missing = [end for end in ends if end not in ids]
        if missing:
            raise InvalidInput("the edge names {}, which is not a node", missing[0], "add the node or correct the edge")
    text: str = defusedxml.ElementTree.tostring(root, encoding="unicode")
    try:
        graph = nx.parse_graphml(text, node_type=str, force_multigraph=True)
    except (nx.NetworkXError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput("NetworkX cannot read this GraphML file: {}", error, _WAY_OUT) from None
    for name, members in (("node_default", graph.nodes), ("edge_default", graph.edges)):
        for data in members.values():
            data.update(graph.graph.get(name, {}) | data)
    return from_networkx(graph, spec)
