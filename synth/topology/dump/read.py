"""From the XML of NCCL_TOPO_DUMP_FILE to a machine."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.check import first_repeated
from chorale.synth.topology.dump.machine import Gpu, HostSwitch, Machine, Nic, Wire
from chorale.synth.topology.dump.speeds import (
    LOCAL,
    c2c_bandwidth,
    cpu_bandwidth,
    nvlink_bandwidth,
    pci_bandwidth,
    xgmi_bandwidth,
)

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
    reader = _Reader(only_places=next(root.iter("gpu"), None) is None)
    for cpu in root.findall("cpu"):
        reader.read_cpu(cpu)
    return reader.machine()


class _Reader:
    """Collects the parts of a machine on a walk from the CPUs down."""

    def __init__(self, only_places: bool) -> None:
        self.only_places = only_places
        self.cpus = 0
        self.hosts: list[HostSwitch] = []
        self.gpus: list[Gpu] = []
        self.nics: dict[int, Nic] = {}

    def read_cpu(self, cpu: Element) -> None:
        bandwidth = cpu_bandwidth(cpu.attrib, _whole(cpu, "familyid", 0), _whole(cpu, "modelid", 0))
        place = len(self.hosts)
        self.hosts.append(HostSwitch(f"cpu:{self.cpus}", None, bandwidth))
        self.cpus += 1
        for nic in cpu.findall("nic"):
            self.read_nic(nic, place, LOCAL)
        waiting = [(pci, place) for pci in reversed(cpu.findall("pci"))]
        while waiting:
            pci, parent = waiting.pop()
            below = self.read_pci(pci, parent)
            waiting += [(child, below) for child in reversed(pci.findall("pci"))]

    def read_pci(self, pci: Element, parent: int) -> int:
        """Take the device at `pci` and return the host switch that devices below it are linked with."""
        kind = pci.get("class", "")
        bandwidth = pci_bandwidth(pci.get("link_speed", ""), _whole(pci, "link_width", 0))
        gpus, nics = pci.findall("gpu"), pci.findall("nic")
        if gpus or (self.only_places and kind.startswith(_GPU_CLASSES)):
            self.read_gpus(pci, gpus, parent, bandwidth)
        elif nics:
            for nic in nics:
                self.read_nic(nic, parent, bandwidth)
        elif self.only_places and kind.startswith(_NIC_CLASS):
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
            self.gpus.append(Gpu(_whole(gpus[0], "rank"), bus, parent, bandwidth, _wires(gpus[0])))

    def read_nic(self, nic: Element, parent: int, bandwidth: Fraction) -> None:
        nets = [net for net in nic.findall("net") if net.get("dev") is not None and net.get("net") != "0"]
        for net in nets:
            mbit = _whole(net, "speed", 0, -(10**9), MAX_MBIT)
            speed = Fraction(mbit if mbit > 0 else _DEFAULT_MBIT, 8000)
            self.add_nic(Nic(_whole(net, "dev"), parent, bandwidth / len(nets), speed))

    def add_nic(self, nic: Nic) -> None:
        """Add `nic` unless it is there: sockets are listed below every CPU."""
        self.nics.setdefault(nic.number, nic)

    def machine(self) -> Machine:
        """Return the machine, checked."""
        if not self.gpus:
            raise InvalidInput("a topology dump must have GPUs", "none with a rank", "dump on a machine with GPUs")
        names = [host.name for host in self.hosts]
        for rule, twice in (
            ("ranks of GPUs in a topology dump must be unique", first_repeated(str(gpu.rank) for gpu in self.gpus)),
            ("bus ids in a topology dump must be unique", first_repeated([*names, *(gpu.bus for gpu in self.gpus)])),
        ):
            if twice is not None:
                raise InvalidInput(rule, twice, _WAY_OUT)
        known = {gpu.bus for gpu in self.gpus}
        gpus = (
            replace(gpu, wires=tuple(wire for wire in gpu.wires if wire.kind != "gpu" or wire.target in known))
            for gpu in self.gpus
        )
        return Machine(
            gpus=tuple(sorted(gpus, key=lambda gpu: gpu.rank)),
            nics=tuple(self.nics[number] for number in sorted(self.nics)),
            hosts=tuple(self.hosts),
            positions_only=self.only_places,
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
