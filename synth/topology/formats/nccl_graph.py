"""Reads and writes NCCL graph files: the channels that NCCL found (NCCL_GRAPH_DUMP_FILE), or that it must use.

A channel lists the NIC through which data enter a box, the GPUs of the box in order, and the NIC through which data
leave. With NCCL_GRAPH_FILE, NCCL uses the graphs in the file and searches for the missing graphs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats.networkx_graph import parse_xml

PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
RING = 4
MAX_CHANNELS = 64
_LOCAL = 2**56 - 1  # the higher bits of a device number are the host number
_WAY_OUT = "give what NCCL wrote with NCCL_GRAPH_DUMP_FILE"


@dataclass(frozen=True, slots=True)
class NcclChannel:
    """A channel: `gpus` of a box in order, and `nets` (NICs) where data enter and leave; empty for a single box."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """A graph: channels of one pattern. `speed_intra`, `speed_inter`: GB/s per channel in a box and between boxes."""

    number: int
    pattern: int
    speed_intra: float
    speed_inter: float
    channels: tuple[NcclChannel, ...]
    type_intra: str = "NVL"


def read_graphs(content: bytes) -> list[NcclGraph]:
    """Return the graphs in a file that have channels. Raises InvalidInput for other files and for malformed numbers."""
    root = parse_xml(content, "a graph file of NCCL")
    if root.tag != "graphs":
        raise InvalidInput("the root element of a graph file of NCCL must be <graphs>", f"<{root.tag}>", _WAY_OUT)
    try:
        graphs = []
        for element in root.findall("graph"):
            channels = tuple(
                NcclChannel(
                    tuple(int(gpu.get("dev", ""), 16) & _LOCAL for gpu in channel.findall("gpu")),
                    tuple(int(net.get("dev", ""), 16) & _LOCAL for net in channel.findall("net")),
                )
                for channel in element.findall("channel")
            )
            numbers = int(element.get("id", "")), int(element.get("pattern", ""))
            speed = float(element.get("speedintra", ""))
            speeds = speed, float(element.get("speedinter", speed))
            graphs.append(NcclGraph(*numbers, *speeds, channels, element.get("typeintra", "NVL")))
    except (TypeError, ValueError) as error:
        raise InvalidInput("damaged graph file of NCCL: {}", error, _WAY_OUT) from None
    found = [graph for graph in graphs if graph.channels]
    if not found:
        raise InvalidInput("this graph file of NCCL has no graph with channels", "", _WAY_OUT)
    return found


def graph_file(graphs: Sequence[NcclGraph]) -> bytes:
    """Return `graphs` in the file format that NCCL_GRAPH_FILE expects."""
    root = Element("graphs", version="1")
    for graph in graphs:
        same = len({channel.gpus for channel in graph.channels}) == 1
        attributes = {
            "id": str(graph.number), "pattern": str(graph.pattern), "crossnic": "0",
            "nchannels": str(len(graph.channels)), "speedintra": f"{graph.speed_intra:g}",
            "speedinter": f"{graph.speed_inter:g}", "latencyinter": "0", "typeintra": graph.type_intra,
            "typeinter": "PIX", "samechannels": str(int(same)),
        }  # fmt: skip
        element = SubElement(root, "graph", attributes)
        for channel in graph.channels:
            inside = SubElement(element, "channel")
            for net in channel.nets[:1]:
                SubElement(inside, "net", dev=f"{net:x}")
            for gpu in channel.gpus:
                SubElement(inside, "gpu", dev=f"{gpu:x}")
            for net in channel.nets[1:]:
                SubElement(inside, "net", dev=f"{net:x}")
    indent(root)
    return tostring(root) + b"\n"
