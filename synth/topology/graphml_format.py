"""Topologies as GraphML, with the attribute names of the JSON format."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element

import defusedxml.ElementTree
import networkx as nx

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import first_repeated
from chorale.synth.topology.networkx_graph import from_networkx
from chorale.synth.topology.safe_xml import parse_xml, tag_of
from chorale.synth.topology.topology import Topology

_WAY_OUT = "correct the file"


def from_graphml(content: bytes, spec: str = "file:topology.graphml") -> Topology:
    """Return the checked topology in `content`, read as `from_networkx` reads the graph.

    Entities and external references are refused before anything is expanded. Default values of keys apply.
    Raises InvalidInput.
    """
    return from_graphml_root(parse_xml(content, "a GraphML file"), spec)


def from_graphml_root(root: Element, spec: str) -> Topology:
    """Return the checked topology below the root element of a GraphML file."""
    if tag_of(root) != "graphml":
        raise InvalidInput("an XML topology file must be GraphML", f"a file of <{root.tag}>", "convert the file")
    _check_nodes(root)
    text: str = defusedxml.ElementTree.tostring(root, encoding="unicode")
    try:
        graph = nx.parse_graphml(text, node_type=str, force_multigraph=True)
    except (nx.NetworkXError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput("a GraphML file must hold one graph that NetworkX can read", error, _WAY_OUT) from None
    _apply_defaults(graph)
    return from_networkx(graph, spec)


def _check_nodes(root: Element) -> None:
    """Refuse what NetworkX would mend in silence: nodes that are there twice and links of nodes that are not."""
    nodes = [element.get("id", "") for element in root.iter() if tag_of(element) == "node"]
    known = set(nodes)
    twice = first_repeated(nodes)
    if twice is not None:
        raise InvalidInput("node ids must be unique", twice, "rename one of the nodes")
    for element in root.iter():
        ends = (element.get("source", ""), element.get("target", "")) if tag_of(element) == "edge" else ()
        missing = [end for end in ends if end not in known]
        if missing:
            raise InvalidInput("both ends of an edge must be nodes", missing[0], "add the node or correct the edge")


def _apply_defaults(graph: nx.Graph[Any]) -> None:
    node_defaults = graph.graph.get("node_default", {})
    for _, data in graph.nodes(data=True):
        for key, value in node_defaults.items():
            data.setdefault(key, value)
    edge_defaults = graph.graph.get("edge_default", {})
    for _, _, data in graph.edges(data=True):
        for key, value in edge_defaults.items():
            data.setdefault(key, value)
