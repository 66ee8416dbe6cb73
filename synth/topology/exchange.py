"""Topologies in and out: files by their content, NetworkX graphs."""

from __future__ import annotations

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.dump.boxes import BoxNetwork, boxes_topology
from chorale.synth.topology.dump.machine import Machine
from chorale.synth.topology.dump.read import read_machine
from chorale.synth.topology.graphml_format import from_graphml, from_graphml_root
from chorale.synth.topology.json_format import from_json, to_json
from chorale.synth.topology.networkx_graph import from_networkx, to_networkx
from chorale.synth.topology.safe_xml import parse_xml, tag_of
from chorale.synth.topology.topology import Topology

__all__ = ["dumped_machine", "from_bytes", "from_graphml", "from_json", "from_networkx", "to_json", "to_networkx"]

_BLANKS = b"\xef\xbb\xbf \t\r\n"


def from_bytes(content: bytes, spec: str) -> Topology:
    """Return the checked topology of a file; its first character tells JSON from XML, else the extension of `spec`.

    XML is GraphML or, with the root element <system>, a topology dump of NCCL or RCCL, which gives one box.
    """
    if _is_xml(content, spec):
        root = parse_xml(content, "an XML topology file")
        if tag_of(root) == "system":
            return boxes_topology(read_machine(root), BoxNetwork(), spec)
        return from_graphml_root(root, spec)
    if content.lstrip(_BLANKS).startswith(b"{") or spec.lower().endswith(".json"):
        return from_json(content, spec)
    rule = "a topology file must be JSON, GraphML or a topology dump"
    raise InvalidInput(rule, spec, "see `chorale topology list` for the formats")


def dumped_machine(content: bytes, spec: str) -> Machine | None:
    """Return the machine of a topology dump, None for a file of another format."""
    if not _is_xml(content, spec):
        return None
    root = parse_xml(content, "an XML topology file")
    return read_machine(root) if tag_of(root) == "system" else None


def _is_xml(content: bytes, spec: str) -> bool:
    return content.lstrip(_BLANKS).startswith(b"<") or spec.lower().endswith((".graphml", ".xml"))
