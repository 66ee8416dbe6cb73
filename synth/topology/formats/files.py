"""Reads topology files of all formats, which are recognised by their content."""

import re
from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.gpu_matrices import is_gpu_matrix, read_gpu_matrix
from chorale.synth.topology.formats.hwloc import read_hwloc
from chorale.synth.topology.formats.ibnetdiscover import is_ibnetdiscover, read_fabric
from chorale.synth.topology.formats.json_document import FORMAT, from_json
from chorale.synth.topology.formats.labels import labelled_parts
from chorale.synth.topology.formats.machine_network import BoxNetwork, Machine, boxes_topology
from chorale.synth.topology.formats.nccl_dump import read_machine
from chorale.synth.topology.formats.networkx_graph import from_graphml_root, parse_xml
from chorale.synth.topology.topology import Topology

_BLANKS = b"\xef\xbb\xbf \t\r\n"
_HWLOC_TYPE = re.compile(rb'<!DOCTYPE topology SYSTEM "hwloc2?\.dtd">')
_MAX_TOOL_OUTPUT = 2**24
_DUMP = re.compile(r"<(?:system|topology|graphs)(?=[\s>])")
_WHOLE_DUMP = re.compile(r"<(system|topology|graphs)[\s>].*?</\1>", re.DOTALL)


def from_bytes(content: bytes, spec: str, model: str | None = None) -> Topology:
    """Return the checked topology in a file. The format is detected from `content` and the extension in `spec`.

    XML is GraphML, an NCCL or RCCL topology dump (root element <system>), or an hwloc file (<topology>); dumps and
    hwloc files describe one box. Other text is the output of `nvidia-smi topo -m`, `rocm-smi --showtopo`, `amd-smi
    topology` or `ibnetdiscover`.
    """
    machine = machine_of(content, spec, model)
    if machine is not None:
        return boxes_topology(machine, BoxNetwork(), spec)
    if model is not None:
        raise InvalidInput("{} states its GPU model itself", spec, "leave out the model")
    if _is_xml(content, spec):
        return from_graphml_root(_xml_root(content), spec)
    if _is_json(content, spec):
        return from_json(content, spec)
    text = _text(content)
    if is_ibnetdiscover(text):
        return read_fabric(text).topology(spec)
    rule = "{} is not JSON, GraphML, a topology dump of NCCL or the output of a known tool"
    tools = "`nvidia-smi topo -m`, `rocm-smi --showtopo` or `ibnetdiscover`"
    raise InvalidInput(rule, spec, f"give the file that NCCL_TOPO_DUMP_FILE names, or the output of {tools}")


def machine_of(content: bytes, spec: str, model: str | None = None) -> Machine | None:
    """Return the machine that a topology dump, an hwloc file or a GPU matrix describes, or None for other formats.

    `model` names the GPU model, which a matrix or an hwloc file may not state. Raises InvalidInput if `model` is given
    for a dump, because a dump states the compute capability of its GPUs.
    """
    if _is_xml(content, spec):
        root = _xml_root(content)
        name = root.tag.rpartition("}")[2]
        if name == "graphs":
            rule = "this is a graph file of NCCL: it has the channels that NCCL chose, not the links of the machine"
            way_out = "see `chorale topology graph SPEC FILE`, or dump the machine with NCCL_TOPO_DUMP_FILE instead"
            raise InvalidInput(rule, "", way_out)
        if name == "topology":
            return read_hwloc(root, model)
        if name == "system" and model is not None:
            raise InvalidInput("{} states its GPU model itself", spec, "leave out the model")
        return read_machine(root) if name == "system" else None
    text = _text(content)
    if _is_json(content, spec) and FORMAT in text[:4096]:
        return None
    return read_gpu_matrix(text, model) if is_gpu_matrix(text) else None


def fabric_text(content: bytes) -> str | None:
    """Return the decoded text if `content` is ibnetdiscover output, or None for a file in another format."""
    text = _text(content)
    return text if is_ibnetdiscover(text) else None


def _text(content: bytes) -> str:
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    return content[:_MAX_TOOL_OUTPUT].decode(encoding, errors="replace")


def _is_xml(content: bytes, spec: str) -> bool:
    if content.lstrip(_BLANKS).startswith(b"<") or spec.lower().endswith((".graphml", ".xml")):
        return True
    return _DUMP.search(_text(content)) is not None


def _is_json(content: bytes, spec: str) -> bool:
    return content.lstrip(_BLANKS).startswith(b"{") or spec.lower().endswith(".json")


def _xml_root(content: bytes) -> Element:
    """Return the root element of an XML file, ignoring the document type that hwloc writes.

    A dump may be part of a log and may occur several times if all copies are identical.
    """
    content = _HWLOC_TYPE.sub(b"", content, count=1)
    text = _text(content)
    if _DUMP.search(text) is not None and "<!DOCTYPE" not in text:
        dumps = [dump[0] for part in labelled_parts(text, _DUMP) for dump in _WHOLE_DUMP.finditer(part)]
        dumps = [dump for dump in dumps if not dump.startswith("<graphs")] or dumps
        if not dumps:
            way_out = "save the complete file, such as that of NCCL_TOPO_DUMP_FILE"
            raise InvalidInput("the topology dump is not complete: {}", "an XML element without its end", way_out)
        if len({re.sub(r"\s+", " ", dump) for dump in dumps}) > 1:
            value, way_out = f"{len(dumps)} that differ", "save each in a separate file; --boxes N joins N equal ones"
            raise InvalidInput("the file does not contain exactly one topology dump: {}", value, way_out)
        content = dumps[0].encode()
    return parse_xml(content, "an XML topology file")
