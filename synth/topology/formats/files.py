"""Topology files of all formats, recognised by their content."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.json_document import from_json
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.formats.nccl_dump import read_machine
from chorale.synth.topology.formats.networkx_graph import from_graphml_root, parse_xml
from chorale.synth.topology.formats.tool_outputs import (
    from_gpu_matrix,
    from_ibnetdiscover,
    is_gpu_matrix,
    is_ibnetdiscover,
)
from chorale.synth.topology.topology import Topology

_BLANKS = b"\xef\xbb\xbf \t\r\n"
_MAX_TOOL_OUTPUT = 2**24


def from_bytes(content: bytes, spec: str) -> Topology:
    """Return the checked topology of a file; its first character tells JSON from XML, else the extension of `spec`.

    XML is GraphML or, with the root element <system>, a topology dump of NCCL or RCCL, which gives one box. Other text
    is what `nvidia-smi topo -m`, `rocm-smi --showtopo` or `ibnetdiscover` printed.
    """
    if _is_xml(content, spec):
        root = parse_xml(content, "an XML topology file")
        machine = _machine_below(root)
        return from_graphml_root(root, spec) if machine is None else boxes_topology(machine, BoxNetwork(), spec)
    if content.lstrip(_BLANKS).startswith(b"{") or spec.lower().endswith(".json"):
        return from_json(content, spec)
    text = content[:_MAX_TOOL_OUTPUT].decode(errors="replace")
    if is_ibnetdiscover(text):
        return from_ibnetdiscover(text, spec)
    if is_gpu_matrix(text):
        return from_gpu_matrix(text, spec)
    rule = "a topology file must be JSON, GraphML, a topology dump or an output of a tool"
    raise InvalidInput(rule, spec, "see `chorale topology list` for the formats")


def dumped_machine(content: bytes, spec: str) -> Machine | None:
    """Return the machine of a topology dump, None for a file of another format."""
    return _machine_below(parse_xml(content, "an XML topology file")) if _is_xml(content, spec) else None


def _is_xml(content: bytes, spec: str) -> bool:
    return content.lstrip(_BLANKS).startswith(b"<") or spec.lower().endswith((".graphml", ".xml"))


def _machine_below(root: Element) -> Machine | None:
    return read_machine(root) if root.tag.rpartition("}")[2] == "system" else None
