"""Topologies as GraphML, with the attribute names of the JSON format."""

from __future__ import annotations

from typing import Any
from xml.etree.ElementTree import Element, ParseError

import defusedxml.ElementTree
import networkx as nx
from defusedxml.common import DefusedXmlException

from synth.errors import InvalidInput
from synth.topology.check import first_repeated
from synth.topology.networkx_graph import from_networkx
from synth.topology.topology import Topology

_WAY_OUT = "correct the file"


def from_graphml(content: bytes, spec: str = "file:topology.graphml") -> Topology:
    """Return the checked topology in `content`, read as `from_networkx` reads the graph.

    Entities and external references are refused before anything is expanded. Default values of keys apply.
    Raises InvalidInput.
    """
    text = _safe_text(content)
    try:
        graph = nx.parse_graphml(text, node_type=str, force_multigraph=True)
    except (nx.NetworkXError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput("a GraphML file must hold one graph that NetworkX can read", error, _WAY_OUT) from None
    _apply_defaults(graph)
    return from_networkx(graph, spec)


def _safe_text(content: bytes) -> str:
    try:
        root = defusedxml.ElementTree.fromstring(content, forbid_dtd=True)
    except DefusedXmlException as error:
        value = type(error).__name__
        raise InvalidInput("an XML file must not define or refer to entities", value, "remove the DOCTYPE") from None
    except (ParseError, ValueError, LookupError) as error:
        raise InvalidInput("a GraphML file must be well-formed XML", error, _WAY_OUT) from None
    if _tag(root) != "graphml":
        raise InvalidInput("an XML topology file must be GraphML", f"a file of <{root.tag}>", "convert the file")
    _check_nodes(root)
    text: str = defusedxml.ElementTree.tostring(root, encoding="unicode")
    return text


def _check_nodes(root: Element) -> None:
    """Refuse what NetworkX would mend in silence: nodes that are there twice and links of nodes that are not."""
    nodes = [element.get("id", "") for element in root.iter() if _tag(element) == "node"]
    known = set(nodes)
    twice = first_repeated(nodes)
    if twice is not None:
        raise InvalidInput("node ids must be unique", twice, "rename one of the nodes")
    for element in root.iter():
        ends = (element.get("source", ""), element.get("target", "")) if _tag(element) == "edge" else ()
        missing = [end for end in ends if end not in known]
        if missing:
            raise InvalidInput("both ends of an edge must be nodes", missing[0], "add the node or correct the edge")


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2]


def _apply_defaults(graph: nx.Graph[Any]) -> None:
    node_defaults = graph.graph.get("node_default", {})
    for _, data in graph.nodes(data=True):
        for key, value in node_defaults.items():
            data.setdefault(key, value)
    edge_defaults = graph.graph.get("edge_default", {})
    for _, _, data in graph.edges(data=True):
        for key, value in edge_defaults.items():
            data.setdefault(key, value)
