"""Topologies in and out: files by their content, NetworkX graphs."""

from __future__ import annotations

from synth.errors import InvalidInput
from synth.topology.graphml_format import from_graphml
from synth.topology.json_format import from_json, to_json
from synth.topology.networkx_graph import from_networkx, to_networkx
from synth.topology.topology import Topology

__all__ = ["from_bytes", "from_graphml", "from_json", "from_networkx", "to_json", "to_networkx"]


def from_bytes(content: bytes, spec: str) -> Topology:
    """Return the checked topology of a file; its first character tells JSON from XML, else the extension of `spec`."""
    start = content.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"<" or spec.lower().endswith((".graphml", ".xml")):
        return from_graphml(content, spec)
    if start == b"{" or spec.lower().endswith(".json"):
        return from_json(content, spec)
    raise InvalidInput("a topology file must be JSON or GraphML", spec, "see `chorale topology list` for the formats")
