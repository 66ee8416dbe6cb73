"""Reads machines from hwloc XML files (`lstopo machine.xml`), versions 1 to 3.

hwloc lists GPUs and NICs below CPUs and PCI Express bridges, with the rate of each slot. It lists links between GPUs
only if it was built with NVML or ROCm SMI (matrices NVLinkBandwidth and XGMIBandwidth). Otherwise, these links are
guessed from NVSwitches among the PCI devices and from GPU names.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from xml.etree.ElementTree import Element

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.formats import rates
from chorale.synth.topology.formats.machine_network import Gpu, HostSwitch, Machine, Nic, Wire, WireKind, rack_gpus
from chorale.synth.topology.topology import Assumption

MAX_OBJECTS = 2**17
_MAX_DEVICES = 1024
_OPEN_FABRICS, _NETWORK = ("3", "32"), ("2", "16")
"""Values of `osdev_type`, in versions 2 and 3 of hwloc, for RDMA devices and for network interfaces."""
_GPU_VENDORS = ("10de", "1002")
_ARCHITECTURES = {"aarch64": "arm64", "ppc64le": "ppc64"}
_ADVICE = "dump the machine with NCCL or RCCL (NCCL_TOPO_DUMP_FILE), or name the GPUs with --model"


def read_hwloc(root: Element, model: str | None = None) -> Machine:
    """Return the machine that the root element <topology> describes. By default, `model` is read from the file.

    Raises InvalidInput for files without GPUs and for malformed numbers.
    """
    if sum(1 for _ in root.iter()) > MAX_OBJECTS:
        raise InvalidInput(f"a file of hwloc must have at most {MAX_OBJECTS} elements", "more", "export one machine")
    try:
        return _Reader(root, None if model is None else rates.model_called(model)).machine(root)
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidInput("damaged file of hwloc: {}", error, "export it with lstopo again") from None


def _infos(element: Element) -> dict[str, str]:
    return {info.get("name", ""): info.get("value", "") for info in element.findall("info")}


def _kind(element: Element) -> str:
    """Return the class and vendor of a PCI device, such as "0302 10de", or "" for other elements."""
    match = re.match(r"\s*([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4})", element.get("pci_type", ""))
    return f"{match[1]} {match[2]}".lower() if match else ""


class _Reader:
    """Collects CPUs, GPUs, NICs and links of a machine from the elements of an hwloc file."""

    def __init__(self, root: Element, chosen: rates.GpuModel | None) -> None:
        devices = [each for each in root.iter("object") if each.get("type") == "PCIDev"]
        gpus = [each for each in devices if _kind(each)[:2] in ("03", "12") and _kind(each)[5:] in _GPU_VENDORS]
        able = [each for each in gpus if any(_infos(inner).get("GPUModel") for inner in each.iter("object"))]
        self.gpus = able or [each for each in gpus if not _kind(each).startswith("0300")] or gpus
        system = [each.get("osdev_type") for each in root.iter("object")]
        fabric = _OPEN_FABRICS if set(system) & set(_OPEN_FABRICS) else _NETWORK
        self.ports = {
            each: [inner for inner in each.findall("object") if inner.get("osdev_type") in fabric] for each in devices
        }
        self.has_nvswitches = any(_kind(each) == "0680 10de" for each in devices)
        names = [text for gpu in self.gpus for each in gpu.iter("object") for text in _names(each)]
        fitting = rates.models_named("\n".join(f"GPU {name}" for name in dict.fromkeys(names)))
        self.named = tuple(dict.fromkeys(names))
        self.chosen = chosen
        self.model = chosen or (fitting[0] if len({each.link_rate.physical for each in fitting}) == 1 else None)
        self.architecture = next(
            (each.get("value", "") for each in root.iter("info") if each.get("name") == "Architecture"), "x86_64"
        )
        self.hosts: list[HostSwitch] = []
        self.place: dict[Element, tuple[int, rates.Rate]] = {}
        if len(devices) > _MAX_DEVICES * 8 or len(self.gpus) > _MAX_DEVICES:
            raise InvalidInput(f"a machine must have at most {_MAX_DEVICES} GPUs", len(self.gpus), "export one machine")

    def machine(self, root: Element) -> Machine:
        if not self.gpus:
            rule = "the file of hwloc has no GPU of NVIDIA or AMD"
            raise InvalidInput(rule, "", "export it on a machine with GPUs, with `lstopo a.xml`")
        packages = [each for each in root.iter("object") if each.get("type") in ("Package", "Socket")] or [root]
        for number, package in enumerate(packages):
            about = _infos(package)
            family, kind = about.get("CPUFamilyNumber", "0"), about.get("CPUModelNumber", "0")
            arch = _ARCHITECTURES.get(self.architecture, self.architecture)
            between = rates.cpu_rate({"arch": arch, "vendor": about.get("CPUVendor", "")}, int(family), int(kind))
            self.hosts.append(HostSwitch(f"cpu:{number}", None, between))
        for number, package in enumerate(packages):
            self.walk(package, number, ())
        self.walk(root, 0, ())  # devices listed next to the CPUs, as on machines with one CPU
        wires, facts, positions_only = self.wires(root)
        gpus = []
        for rank, gpu in enumerate(self.gpus):
            host, slot = self.place[gpu]
            bus = _bus(gpu)
            gpus.append(Gpu((rank,), bus, host, slot, tuple(wires.get(bus, ())), self.capability >= 90))
        nics: list[Nic] = []
        for device, ports in self.ports.items():
            if device in self.place:
                host, slot = self.place[device]
                for port in ports:
                    name = port.get("name", "")
                    nics.append(Nic(str(len(nics)), _bus(device), host, slot, None, name=name))
        domain = rack_gpus(gpus, self.capability) if self.architecture in ("aarch64", "arm64") else 0
        return Machine(tuple(gpus), tuple(nics), tuple(self.hosts), positions_only, domain, tuple(facts))

    @property
    def capability(self) -> int:
        """Compute capability of the GPUs, times ten; 0 for AMD GPUs and unknown models."""
        known = None if self.model is None else self.model.architecture
        return known if isinstance(known, int) else 0

    def walk(self, element: Element, host: int, above: tuple[rates.Rate, ...]) -> None:
        """Collect the devices below `element`. `above`: rates of the PCI Express links from `element` up to `host`."""
        for child in element.findall("object"):
            if child in self.place or child.get("type") in ("Package", "Socket"):
                continue
            if child.get("type") == "PCIDev":
                if child in self.gpus or self.ports.get(child):
                    self.place[child] = host, self.slot(child, above)
            elif child.get("type") == "Bridge":
                below = [inner for inner in child.iter("object") if inner in self.gpus or self.ports.get(inner)]
                if not below or below[0] in self.place:
                    continue
                speed = self.speed(child)
                chain = above if speed is None else (*above, speed)
                branches = [each for each in child.findall("object") if set(each.iter("object")) & set(below)]
                if len(branches) > 1 and child.get("bridge_type") != "0-1":
                    self.hosts.append(
                        HostSwitch(f"pci:{_bus(child)}", host, rates.narrowest(*chain) if chain else rates.LOCAL)
                    )
                    self.walk(child, len(self.hosts) - 1, ())
                else:
                    self.walk(child, host, chain)
            else:
                self.walk(child, host, above)

    def speed(self, element: Element) -> rates.Rate | None:
        value = Fraction(element.get("pci_link_speed") or "0")
        return rates.lanes_of(value, "pci_link_speed") if value > 0 else None

    def slot(self, device: Element, above: tuple[rates.Rate, ...]) -> rates.Rate:
        """Return the rate of a device's slot. GPUs get the published rate, because hwloc reports less for idle GPUs."""
        found = [*above, *filter(None, [self.speed(device)])]
        if device not in self.gpus or self.model is None:
            usual = rates.pci_rate_of(4, "hwloc", is_known=True)
            unknown = usual.as_guess("PCI Express link without a speed: 4, 16 lanes", "correct pci_link_speed")
            return rates.narrowest(*found) if found else unknown
        published = rates.pci_rate_of(self.model.pci, f"data sheet of {self.model.name}", is_known=True)
        if not found or rates.narrowest(*found).physical >= published.physical:
            return published
        slowest = rates.narrowest(*found)
        advice = (
            f"hwloc saw {float(slowest.physical):.4g} GB/s, the rate of a sleeping link; dump the machine with NCCL"
        )
        return published.as_guess("slots of GPUs, by their model", advice)

    def wires(self, root: Element) -> tuple[dict[str, list[Wire]], list[Assumption], bool]:
        """Return (each GPU's links, keyed by its bus id; assumptions; whether the links between GPUs are unknown)."""
        facts = []
        if self.model is not None:
            source = "--model" if self.chosen else "GPUModel or PCIDevice"
            facts.append(Assumption("model of the GPUs", self.model.name, "file", source))
        wires = dict(self.measured_wires(root))
        if wires:
            return wires, facts, False
        model = self.model
        if model is None or not model.links or not isinstance(model.architecture, int):
            is_known = model is not None and not model.links and isinstance(model.architecture, int)
            return {}, facts, not is_known
        if self.has_nvswitches or rates.is_module(model, "\n".join(self.named)):
            each = model.link_rate.as_guess(f"{model.links} NVLinks of each GPU, which a switch joins", _ADVICE)
            return {_bus(gpu): [Wire("nvswitch", "", each.times(model.links))] for gpu in self.gpus}, facts, False
        return {}, facts, True

    def measured_wires(self, root: Element) -> Iterator[tuple[str, list[Wire]]]:
        """Yield (bus id, links) of each GPU, read from the bandwidth matrices in the file."""
        owner = {each.get("gp_index"): each for each in root.iter("object") if each.get("type") == "PCIDev"}
        bus_of = {inner.get("gp_index"): _bus(each) for each in owner.values() for inner in each.iter("object")}
        gpus = {_bus(gpu) for gpu in self.gpus}
        kinds: dict[str, WireKind] = {_bus(each): "nvswitch" for each in owner.values() if _kind(each) == "0680 10de"}
        kinds["cpu"] = "cpu"
        for matrix in (each for each in root if each.get("name") in ("NVLinkBandwidth", "XGMIBandwidth")):
            indexes = "".join(each.text or "" for each in matrix.findall("indexes")).split()
            values = [int(word) for each in matrix.findall("u64values") for word in (each.text or "").split()]
            if len(values) != len(indexes) ** 2:
                raise ValueError(f"{matrix.get('name')} with {len(values)} values of {len(indexes)} devices")
            ends = []  # bus ids of devices, and "cpu" for CPUs
            for index in indexes:
                kind, _, number = index.rpartition(":")
                is_cpu = kind in ("Package", "Socket", "NUMANode")
                ends.append("cpu" if is_cpu else bus_of.get(number, index))
            for row, gpu in enumerate(ends):
                if gpu in gpus:
                    cells = zip(ends, values[row * len(ends) : (row + 1) * len(ends)], strict=True)
                    linked = [(end, self.link(Fraction(mb, 1000))) for end, mb in cells if end != gpu and mb > 0]
                    yield gpu, [Wire(kinds.get(end, "gpu"), "" if end in kinds else end, each) for end, each in linked]

    def link(self, stated: Fraction) -> rates.Rate:
        """Return `stated` GB/s as a rate: a multiple of the rate of one link if the GPU model is known."""
        if self.model is not None:
            each = self.model.link_rate
            if isinstance(self.model.architecture, str):  # hwloc reports 100 GB/s for any xGMI
                return each.times(self.model.links or max(1, int(stated / each.physical)))
            return each.times(max(1, round(stated / each.physical)))
        found = rates.rate("NVLink or xGMI of GPUs without a known name", stated, stated, "file", "matrix of hwloc")
        return found.as_guess(found.basis.what, _ADVICE)


def _names(element: Element) -> Iterator[str]:
    facts = _infos(element)
    yield from (facts[key] for key in ("GPUModel", "PCIDevice") if key in facts)
    if element.get("type") == "PCIDev" and element.get("name"):
        yield element.get("name", "")


def _bus(element: Element) -> str:
    return element.get("pci_busid", element.get("gp_index", "")).lower()
