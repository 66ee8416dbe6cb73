"""From the XML of NCCL_TOPO_DUMP_FILE to a machine, with the bandwidths in GB/s that NCCL and RCCL assume.

The numbers are facts about those libraries (NCCL 2.2x src/graph/topo.h and topo.cc, RCCL src/graph/topo.h): what
a link carries in practice, below its data sheet. A dump does not contain them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import first_repeated
from chorale.synth.topology.formats.machine_network import Gpu, HostSwitch, Machine, Nic, Wire

LOCAL = Fraction(5000)
"""Parts that the library takes for one, such as a CPU and a NIC without a PCI address."""

_NVLINK = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"))
_OLDEST_NVLINK = Fraction(20)
_NVLS_COMPUTE_CAPABILITY = 90
"""From Hopper on, GPUs behind NVSwitches use them to add and multicast (NVLink SHARP; NCCL's NVLS)."""
_XGMI = (("gfx90a", 36), ("910", 36), ("gfx94", 48), ("94", 48), ("gfx95", 48))
_OTHER_XGMI = Fraction(24)
_LANE_MBIT = {"2.5": 1500, "5": 3000, "8": 6000, "16": 12000, "32": 24000, "64": 48000}
_UNKNOWN_LANE_MBIT = 6000
_UNKNOWN_WIDTHS = (0, 63, 255)
_UNKNOWN_WIDTH = 16
_INTEL_XEONS = ((0xCF, 40), (0x8F, 22), (0x55, 10))
_OLDEST_XEON = Fraction(6)
_AMD_ZEN = {26: 32, 0xBF: 32, 25: 24, 0xAF: 24}
_OLDEST_ZEN = Fraction(16)


def nvlink_bandwidth(compute_capability: int) -> Fraction:
    """Return the bandwidth of one NVLink of a GPU, such as 20.6 for compute capability 90."""
    bandwidths = (bandwidth for first, bandwidth in _NVLINK if compute_capability >= first)
    return Fraction(next(bandwidths, _OLDEST_NVLINK))


def xgmi_bandwidth(architecture: str) -> Fraction:
    """Return the bandwidth of one xGMI link of an AMD GPU; older dumps write gfx90a as 910."""
    bandwidths = (bandwidth for prefix, bandwidth in _XGMI if architecture.startswith(prefix))
    return Fraction(next(bandwidths, _OTHER_XGMI))


def pci_bandwidth(speed: str, width: int) -> Fraction:
    """Return the bandwidth of a PCI Express link of `width` lanes at a `speed` such as "16.0 GT/s PCIe".

    Where the system could not tell, the speed is empty or "Unknown" and counts as 8 GT/s, the width is 0, 63 or
    255 and counts as 16.
    """
    return Fraction((_UNKNOWN_WIDTH if width in _UNKNOWN_WIDTHS else _lanes(width)) * _lane_mbit(speed), 8000)


def c2c_bandwidth(link_mb_per_s: int, count: int) -> Fraction:
    """Return the bandwidth of the chip-to-chip links between a GPU and its CPU."""
    return Fraction(link_mb_per_s * count, 1000)


def cpu_bandwidth(attributes: Mapping[str, str], family: int, model: int) -> Fraction:
    """Return the bandwidth between a CPU and another of the same machine."""
    architecture, vendor = attributes.get("arch", ""), attributes.get("vendor", "")
    if architecture == "ppc64":
        return Fraction(32)
    if architecture == "arm64":
        return Fraction(6)
    if vendor == "AuthenticAMD":
        return Fraction(_AMD_ZEN.get(family, _OLDEST_ZEN))
    if vendor == "GenuineIntel":
        return _intel(family, model)
    if vendor in ("CentaurHauls", "  Shanghai  "):
        return Fraction(9 if (family, model) == (7, 0x5B) else 6)
    return LOCAL


def _intel(family: int, model: int) -> Fraction:
    if family != 6:
        return _OLDEST_XEON
    if model in (0xAD, 0xAE, 0xAF):  # newer than their numbers look
        return Fraction(40)
    bandwidths = (bandwidth for first, bandwidth in _INTEL_XEONS if model >= first)
    return Fraction(next(bandwidths, _OLDEST_XEON))


def _lane_mbit(speed: str) -> int:
    if not speed.strip() or speed.startswith("Unknown"):
        return _UNKNOWN_LANE_MBIT
    match = re.fullmatch(r"([0-9]{1,3})(\.[0-9])? GT/s( PCIe)?", speed.strip())
    number = f"{match[1]}{match[2] or ''}".removesuffix(".0") if match else ""
    if number not in _LANE_MBIT:
        way_out = f"choose from {', '.join(_LANE_MBIT)} GT/s"
        raise InvalidInput("link_speed must be a speed of PCI Express", repr(speed), way_out)
    return _LANE_MBIT[number]


def _lanes(width: int) -> int:
    if 1 <= width <= 32:
        return width
    raise InvalidInput("link_width must be a number of lanes from 1 to 32, or 0", width, "correct the file")


MAX_ELEMENTS = 2**13
MAX_LINKS_OF_GPU = 1024
MAX_MBIT = 10**8
_WAY_OUT = "correct the file"
_BUS = re.compile(r"[0-9a-f]+(:[0-9a-f]+)+\.[0-9a-f]+")
_GPU_CLASSES, _NIC_CLASS = ("0x03", "0x12", "0x13"), "0x02"
_SWITCH_CLASS, _CPU_BRIDGE_CLASS = "0x0680", "0x068001"
_DEFAULT_MBIT = 10_000


def read_machine(root: Element) -> Machine:
    """Return the machine that a dump with root element <system> describes.

    Elements and attributes that say nothing about links are passed over, as NCCL does: GPUs without rank, NICs without
    number, PCI devices of other classes, links to GPUs that are not in the file. In a file without any <gpu>,
    which only places devices, PCI devices of the classes of GPUs and NICs are taken for them.
    Raises InvalidInput naming the element and attribute. O(elements).
    """
    count = sum(1 for _ in root.iter())
    if count > MAX_ELEMENTS:
        rule = f"a topology dump must have at most {MAX_ELEMENTS} elements"
        raise InvalidInput(rule, count, "dump one machine")
    if len({cpu.get("host_hash", "") for cpu in root.findall("cpu")}) > 1:
        raise InvalidInput(
            "a topology dump must be of one machine", "several host_hash", "use --boxes for copies of it"
        )
    reader = _Reader(positions_only=next(root.iter("gpu"), None) is None)
    for cpu in root.findall("cpu"):
        reader.read_cpu(cpu)
    return reader.machine()


class _Reader:
    """Collects the parts of a machine on a walk from the CPUs down."""

    def __init__(self, positions_only: bool) -> None:
        self.positions_only = positions_only
        self.cpus = 0
        self.hosts: list[HostSwitch] = []
        self.gpus: list[Gpu] = []
        self.nics: dict[int, Nic] = {}

    def read_cpu(self, cpu: Element) -> None:
        bandwidth = cpu_bandwidth(cpu.attrib, _whole(cpu, "familyid", 0), _whole(cpu, "modelid", 0))
        host = len(self.hosts)
        self.hosts.append(HostSwitch(f"cpu:{self.cpus}", None, bandwidth))
        self.cpus += 1
        for nic in cpu.findall("nic"):
            self.read_nic(nic, host, LOCAL)
        waiting = [(pci, host) for pci in reversed(cpu.findall("pci"))]
        while waiting:
            pci, parent = waiting.pop()
            below = self.read_pci(pci, parent)
            waiting += [(child, below) for child in reversed(pci.findall("pci"))]

    def read_pci(self, pci: Element, parent: int) -> int:
        """Add the device at `pci` and return the host switch that devices below it are linked with."""
        kind = pci.get("class", "")
        bandwidth = pci_bandwidth(pci.get("link_speed", ""), _whole(pci, "link_width", 0))
        gpus, nics = pci.findall("gpu"), pci.findall("nic")
        if gpus or (self.positions_only and kind.startswith(_GPU_CLASSES)):
            self.read_gpus(pci, gpus, parent, bandwidth)
        elif nics:
            for nic in nics:
                self.read_nic(nic, parent, bandwidth)
        elif self.positions_only and kind.startswith(_NIC_CLASS):
            self.add_nic(Nic(len(self.nics), parent, bandwidth, None))
        elif not kind.startswith((*_GPU_CLASSES, _NIC_CLASS, _SWITCH_CLASS)):
            self.hosts.append(HostSwitch(f"pci:{_bus(pci, 'busid')}", parent, bandwidth))
            return len(self.hosts) - 1
        return parent

    def read_gpus(self, pci: Element, gpus: list[Element], parent: int, bandwidth: Fraction) -> None:
        bus = _bus(pci, "busid")
        if len(gpus) > 1:
            raise InvalidInput("a GPU must have one rank", f"{len(gpus)} at {bus}", "dump with one rank per GPU")
        if not gpus:
            self.gpus.append(Gpu(len(self.gpus), bus, parent, bandwidth, ()))
        elif gpus[0].get("rank") is not None:
            nvls = _whole(gpus[0], "sm", 0) >= _NVLS_COMPUTE_CAPABILITY
            self.gpus.append(Gpu(_whole(gpus[0], "rank"), bus, parent, bandwidth, _wires(gpus[0]), nvls))

    def read_nic(self, nic: Element, parent: int, bandwidth: Fraction) -> None:
        nets = [net for net in nic.findall("net") if net.get("dev") is not None and net.get("net") != "0"]
        for net in nets:
            mbit = _whole(net, "speed", 0, -(10**9), MAX_MBIT)
            speed = Fraction(mbit if mbit > 0 else _DEFAULT_MBIT, 8000)
            self.add_nic(Nic(_whole(net, "dev"), parent, bandwidth / len(nets), speed))

    def add_nic(self, nic: Nic) -> None:
        """Add `nic` unless it was added before: sockets are listed below every CPU."""
        self.nics.setdefault(nic.number, nic)

    def machine(self) -> Machine:
        """Return the machine, checked."""
        if not self.gpus:
            raise InvalidInput("a topology dump must have GPUs", "none with a rank", "dump on a machine with GPUs")
        names = [host.name for host in self.hosts]
        for rule, repeated in (
            ("ranks of GPUs in a topology dump must be unique", first_repeated(str(gpu.rank) for gpu in self.gpus)),
            ("bus ids in a topology dump must be unique", first_repeated([*names, *(gpu.bus for gpu in self.gpus)])),
        ):
            if repeated is not None:
                raise InvalidInput(rule, repeated, _WAY_OUT)
        buses = {gpu.bus for gpu in self.gpus}
        gpus = (
            replace(gpu, wires=tuple(wire for wire in gpu.wires if wire.kind != "gpu" or wire.target in buses))
            for gpu in self.gpus
        )
        return Machine(
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.rank)),
            nics=tuple(self.nics[number] for number in sorted(self.nics)),
            hosts=tuple(self.hosts),
            positions_only=self.positions_only,
        )


def _wires(gpu: Element) -> tuple[Wire, ...]:
    wires: list[Wire] = []
    for link in gpu.findall("nvlink"):
        bandwidth = _whole(link, "count", least=1, most=MAX_LINKS_OF_GPU) * nvlink_bandwidth(_whole(gpu, "sm"))
        kind = link.get("tclass", "")
        if kind.startswith(_GPU_CLASSES):
            wires.append(Wire("gpu", _bus(link, "target"), bandwidth))
        else:
            wires.append(Wire("cpu" if kind == _CPU_BRIDGE_CLASS else "nvswitch", "", bandwidth))
    for link in gpu.findall("xgmi"):
        bandwidth = _whole(link, "count", least=1, most=MAX_LINKS_OF_GPU) * xgmi_bandwidth(gpu.get("gcn", ""))
        wires.append(Wire("gpu", _bus(link, "target"), bandwidth))
    for link in gpu.findall("c2c"):
        count = _whole(link, "count", least=1, most=MAX_LINKS_OF_GPU)
        wires.append(Wire("cpu", "", c2c_bandwidth(_whole(link, "bw", least=1, most=MAX_MBIT), count)))
    return tuple(wires)


def _whole(element: Element, name: str, default: int | None = None, least: int = 0, most: int = 2**31 - 1) -> int:
    """Return the whole number in attribute `name`, `default` where it is missing and has one."""
    text = element.get(name)
    where = f"{name} of <{element.tag}> in a topology dump"
    if text is None:
        if default is None:
            raise InvalidInput(f"{where} must be there", f"an element with {', '.join(element.keys())}", _WAY_OUT)
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
