"""Reads machines from NCCL_TOPO_DUMP_FILE dumps, in the same way as `src/graph/topo.cc` in NCCL and RCCL.

A dump states which links exist, and how many of each; the module `rates` lists their rates.

Also reads and writes NCCL graph files. With NCCL_GRAPH_DUMP_FILE, NCCL writes the channels that it found. With
NCCL_GRAPH_FILE, NCCL uses the graphs in the file and searches for the missing graphs. A channel lists the NIC through
which data enter a box, the GPUs of the box in order, and the NIC through which data leave.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import first_repeated
from chorale.synth.topology.formats.machine_network import Gpu, HostSwitch, Machine, Nic, Wire, rack_gpus, shared_gpus
from chorale.synth.topology.formats.networkx_graph import parse_xml
from chorale.synth.topology.formats.rates import LOCAL, Rate, c2c_rate, cpu_rate, nvlink_rate, pci_rate, rate, xgmi_rate
from chorale.synth.topology.topology import Assumption

_NVLS_COMPUTE_CAPABILITY = 90
"""Lowest compute capability (Hopper) of GPUs whose NVSwitches reduce and multicast data (NVLink SHARP, NCCL's NVLS)."""

MAX_ELEMENTS = 2**13
MAX_LINKS_OF_GPU = 1024
MAX_MBIT = 10**9
_LARGEST_MBIT = 10**7
"""NIC speeds are stated in Mbit/s, but larger numbers are assumed to be in kbit/s, as for Slingshot's `cxi` devices."""
_TWO_LINKS = ("0x1002", "0x74a0")
"""PCI ids of MI300A. Each pair of these GPUs is joined by two xGMI links, which RCCL counts as one."""
_WAY_OUT = "correct the file"
_BUS = re.compile(r"[0-9a-f]+(:[0-9a-f]+)+\.[0-9a-f]+")
_GPU_CLASSES, _NIC_CLASS = ("0x03", "0x12", "0x13"), "0x02"
_SWITCH_CLASS, _CPU_BRIDGE_CLASS = "0x0680", "0x068001"
_DEFAULT_MBIT = 10_000
PATTERNS = {1: "balanced tree", 2: "split tree", 3: "tree", 4: "ring", 5: "nvls", 6: "collnet direct"}
RING = 4
MAX_CHANNELS = 64
_LOCAL_BITS = 2**56 - 1  # the higher bits of a device number are the host number
_GRAPH_WAY_OUT = "give what NCCL wrote with NCCL_GRAPH_DUMP_FILE"


def read_machine(root: Element) -> Machine:
    """Return the machine that a dump with root element <system> describes.

    Elements and attributes that do not describe links are ignored, as in NCCL: GPUs without a rank, NICs without a
    number, PCI devices of other classes, links to GPUs that are not in the file. A file without any <gpu> only gives
    PCI positions; then PCI devices of the GPU and NIC classes count as GPUs and NICs. A dump may contain several hosts
    (`host_hash`) whose GPUs share NVSwitches, and several ranks on one GPU. Raises InvalidInput, which names the
    element and attribute. O(elements).
    """
    count = sum(1 for _ in root.iter())
    if count > MAX_ELEMENTS:
        rule = f"a topology dump must have at most {MAX_ELEMENTS} elements"
        raise InvalidInput(rule, count, "dump one machine")
    newest = max((_whole(gpu, "sm", 0) for gpu in root.iter("gpu")), default=0)
    hashes = dict.fromkeys(cpu.get("host_hash", "") for cpu in root.findall("cpu"))
    reader = _Reader(next(root.iter("gpu"), None) is None, newest, list(hashes))
    for cpu in root.findall("cpu"):
        reader.read_cpu(cpu)
    return reader.machine({cpu.get("arch", "") for cpu in root.findall("cpu")})


class _Reader:
    """Collects CPUs, PCI switches, GPUs and NICs of a machine from the elements of a dump."""

    def __init__(self, positions_only: bool, newest_capability: int, systems: list[str]) -> None:
        self.positions_only = positions_only
        self.generation = 5 if newest_capability >= 90 else 4 if newest_capability >= 80 or positions_only else 3
        self.newest_capability = newest_capability
        self.systems = systems
        self.system = 0
        self.cpus = 0
        self.hosts: list[HostSwitch] = []
        self.bridges: list[tuple[int, str]] = []
        self.gpus: list[Gpu] = []
        self.nics: dict[tuple[int, int], Nic] = {}

    def read_cpu(self, cpu: Element) -> None:
        between = cpu_rate(cpu.attrib, _whole(cpu, "familyid", 0), _whole(cpu, "modelid", 0))
        self.system = self.systems.index(cpu.get("host_hash", ""))
        host = len(self.hosts)
        self.hosts.append(HostSwitch(f"cpu:{self.cpus}", None, between, self.system))
        self.cpus += 1
        for nic in cpu.findall("nic"):
            self.read_nic(nic, host, LOCAL, f"cpu {host}")
        waiting = [(pci, host) for pci in reversed(cpu.findall("pci"))]
        while waiting:
            pci, parent = waiting.pop()
            below = self.read_pci(pci, parent)
            waiting += [(child, below) for child in reversed(pci.findall("pci"))]

    def read_pci(self, pci: Element, parent: int) -> int:
        """Add the device in element `pci`; return the index of the host switch to which devices below it are linked."""
        kind = pci.get("class", "")
        gpus, nics = pci.findall("gpu"), pci.findall("nic")
        is_gpu = bool(gpus) or (self.positions_only and kind.startswith(_GPU_CLASSES))
        is_nic = bool(nics) or (self.positions_only and kind.startswith(_NIC_CLASS))
        width = _whole(pci, "link_width", 0)
        slot = pci_rate(pci.get("link_speed", ""), width, self.generation, is_bridge=not is_gpu and not is_nic)
        if is_gpu:
            self.read_gpus(pci, gpus, parent, slot)
        elif nics:
            for nic in nics:
                self.read_nic(nic, parent, slot, _bus(pci, "busid"))
        elif is_nic:
            self.add_nic(Nic(str(len(self.nics)), _bus(pci, "busid"), parent, slot, None), len(self.nics))
        elif not kind.startswith((*_GPU_CLASSES, _NIC_CLASS, _SWITCH_CLASS)):
            name = f"pci:{self.named(_bus(pci, 'busid'))}"
            copies = sum(host.name.partition("_")[0] == name for host in self.hosts)  # some RCCL dumps repeat ids
            targets = (_bus(link, "target") for link in pci.findall("pcilink"))
            self.bridges += [(len(self.hosts), f"pci:{self.named(target)}") for target in targets]
            self.hosts.append(HostSwitch(f"{name}_{copies}" if copies else name, parent, slot, self.system))
            return len(self.hosts) - 1
        return parent

    def named(self, name: str) -> str:
        """Return a bus id or NIC number, with the host's number as a prefix if the dump contains several hosts."""
        return f"{self.system}.{name}" if len(self.systems) > 1 else name

    def read_gpus(self, pci: Element, gpus: list[Element], parent: int, slot: Rate) -> None:
        bus = self.named(_bus(pci, "busid"))
        if not gpus:
            self.gpus.append(Gpu((len(self.gpus),), bus, parent, slot, ()))
            return
        ranked = [gpu for gpu in gpus if gpu.get("rank") is not None]
        if ranked:  # partitions of one GPU share its slot and links; each may list the links
            nvls = all(_whole(gpu, "sm", 0) >= _NVLS_COMPUTE_CAPABILITY for gpu in ranked)
            links = 2 if (pci.get("vendor"), pci.get("device")) == _TWO_LINKS else 1
            wires = max(
                (self.wires(gpu, links) for gpu in ranked), key=lambda wires: sum(wire.rate.physical for wire in wires)
            )
            self.gpus.append(Gpu(tuple(_whole(gpu, "rank") for gpu in ranked), bus, parent, slot, wires, nvls))

    def read_nic(self, nic: Element, parent: int, slot: Rate, device: str) -> None:
        for net in nic.findall("net"):
            if net.get("dev") is None or net.get("net") == "0":
                continue
            number = _whole(net, "dev")
            mbit = _whole(net, "speed", 0, -MAX_MBIT, MAX_MBIT)
            mbit = mbit // 1000 if mbit > _LARGEST_MBIT else mbit
            value = Fraction(mbit if mbit > 0 else _DEFAULT_MBIT, 8000)
            speed = rate("speed of NICs", value, value, "file", "speed of <net>")
            if mbit <= 0:
                speed = speed.as_guess("NIC without a speed in the file", "give its Gbit/s with --nic-gbps")
            ids = [net.get(name) for name in ("rail", "plane")]
            rail = ".".join(text for text in ids if text and re.fullmatch("[0-9]{1,9}", text)) or None
            name = net.get("name", "")
            found = Nic(self.named(str(number)), f"{self.system} {device}", parent, slot, speed, rail, name)
            self.add_nic(found, number)

    def add_nic(self, nic: Nic, number: int) -> None:
        """Add `nic` unless it was added before. The file repeats network sockets below every CPU."""
        self.nics.setdefault((self.system, number), nic)

    def machine(self, architectures: set[str]) -> Machine:
        """Check and return the machine, after all elements of the file have been read."""
        if not self.gpus:
            raise InvalidInput("the topology dump has no GPU with a rank", "", "dump on a machine with GPUs")
        ranks = [str(rank) for gpu in self.gpus for rank in gpu.ranks]
        for rule, repeated in (
            ("ranks of GPUs in a topology dump must be unique", first_repeated(ranks)),
            ("bus ids of GPUs in a topology dump must be unique", first_repeated([gpu.bus for gpu in self.gpus])),
        ):
            if repeated is not None:
                raise InvalidInput(rule, repeated, _WAY_OUT)
        buses = {gpu.bus for gpu in self.gpus}
        gpus = [
            replace(gpu, wires=tuple(wire for wire in gpu.wires if wire.kind != "gpu" or wire.target in buses))
            for gpu in self.gpus
        ]
        facts = []
        if len(self.systems) > 1:
            value = f"{len(self.systems)} hosts, whose GPUs share NVSwitches where they have links to them"
            facts.append(Assumption("hosts in the file", value, "file", "host_hash"))
        rack = rack_gpus(gpus, self.newest_capability, len(self.systems)) if architectures == {"arm64"} else 0
        place = {host.name: index for index, host in enumerate(self.hosts)}
        return Machine(
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.ranks)),
            nics=tuple(self.nics[number] for number in sorted(self.nics)),
            hosts=tuple(self.hosts),
            positions_only=self.positions_only,
            nvlink_gpus=rack,
            bridges=frozenset((index, place[target]) for index, target in self.bridges if target in place),
            facts=(*facts, *shared_gpus(gpus)),
        )

    def wires(self, gpu: Element, xgmi_links: int) -> tuple[Wire, ...]:
        wires: list[Wire] = []
        for link in gpu.findall("nvlink"):
            each = nvlink_rate(_whole(gpu, "sm")).times(_whole(link, "count", least=1, most=MAX_LINKS_OF_GPU))
            kind = link.get("tclass", "")
            if kind.startswith(_GPU_CLASSES):
                wires.append(Wire("gpu", self.named(_bus(link, "target")), each))
            else:
                wires.append(Wire("cpu" if kind == _CPU_BRIDGE_CLASS else "nvswitch", "", each))
        for link in gpu.findall("xgmi"):
            each = xgmi_rate(gpu.get("gcn", "")).times(_whole(link, "count", least=1, most=MAX_LINKS_OF_GPU))
            each = each._replace(physical=each.physical * xgmi_links)
            wires.append(Wire("gpu", self.named(_bus(link, "target")), each))
        for link in gpu.findall("c2c"):
            count = _whole(link, "count", least=1, most=MAX_LINKS_OF_GPU)
            wires.append(Wire("cpu", "", c2c_rate(_whole(link, "bw", least=1, most=MAX_MBIT), count)))
        return tuple(wires)


def _whole(element: Element, name: str, default: int | None = None, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return attribute `name` as an integer, or `default` if the attribute is missing."""
    text = element.get(name) or None  # NCCL writes link_width="" if it cannot read it
    where = f"{name} of <{element.tag}> in a topology dump"
    if text is None:
        if default is None:
            raise InvalidInput(f"{where} is missing in {{}}", f"an element with {', '.join(element.keys())}", _WAY_OUT)
        return default
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text) or not least <= int(text) <= most:
        raise InvalidInput(f"{where} must be a whole number from {least} to {most}", repr(text), _WAY_OUT)
    return int(text)


def _bus(element: Element, name: str) -> str:
    text = element.get(name, "").strip().lower()
    if len(text) <= 40 and _BUS.fullmatch(text):
        return text
    rule = f"{name} of <{element.tag}> in a topology dump must be a bus id"
    raise InvalidInput(rule, repr(text), "write it as 0000:3b:00.0")


@dataclass(frozen=True, slots=True)
class NcclChannel:
    """A channel: GPUs of a box in order, and the NICs where data enter and leave. `nets` is empty for a single box."""

    gpus: tuple[int, ...]
    nets: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class NcclGraph:
    """Channels with the same pattern. `speed_intra`, `speed_inter`: GB/s per channel in a box and between boxes."""

    number: int
    pattern: int
    speed_intra: float
    speed_inter: float
    channels: tuple[NcclChannel, ...]
    type_intra: str = "NVL"


def read_graphs(content: bytes) -> list[NcclGraph]:
    """Return the graphs in a file, except those without channels. Raises InvalidInput if the file is not valid."""
    root = parse_xml(content, "a graph file of NCCL")
    if root.tag != "graphs":
        raise InvalidInput("the root element of a graph file of NCCL must be <graphs>", f"<{root.tag}>", _GRAPH_WAY_OUT)
    try:
        graphs = []
        for element in root.findall("graph"):
            channels = tuple(
                NcclChannel(
                    tuple(int(gpu.get("dev", ""), 16) & _LOCAL_BITS for gpu in channel.findall("gpu")),
                    tuple(int(net.get("dev", ""), 16) & _LOCAL_BITS for net in channel.findall("net")),
                )
                for channel in element.findall("channel")
            )
            numbers = int(element.get("id", "")), int(element.get("pattern", ""))
            speed = float(element.get("speedintra", ""))
            speeds = speed, float(element.get("speedinter", speed))
            graphs.append(NcclGraph(*numbers, *speeds, channels, element.get("typeintra", "NVL")))
    except (TypeError, ValueError) as error:
        raise InvalidInput("damaged graph file of NCCL: {}", error, _GRAPH_WAY_OUT) from None
    found = [graph for graph in graphs if graph.channels]
    if not found:
        raise InvalidInput("this graph file of NCCL has no graph with channels", "", _GRAPH_WAY_OUT)
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
