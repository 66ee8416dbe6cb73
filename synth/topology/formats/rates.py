"""Lists link rates in GB/s per direction: physical rates, and the rates that NCCL and RCCL expect.

A bound must use the physical rate. The libraries expect lower rates, which account for protocol overhead. Sources:
vendors' data sheets, the PCI Express standard (rates after line coding), and `src/graph/topo.h` in NCCL 2.29 and RCCL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Assumption, Source

_NCCL = "NCCL src/graph/topo.h"
_RCCL = "RCCL src/graph/topo.h"


class Rate(NamedTuple):
    """The `physical` rate of a link and the rate that NCCL or RCCL expects, in GB/s. `basis`: source of both rates."""

    physical: Fraction
    expected: Fraction
    basis: Assumption

    def times(self, count: int) -> Rate:
        return self._replace(physical=count * self.physical, expected=count * self.expected)

    def as_guess(self, what: str, advice: str) -> Rate:
        """Return this rate, marked as a guess. `what`: what the rate is for; `advice`: how to state the real rate."""
        return self._replace(basis=replace(self.basis, what=what, source="guess", reference=advice))


def narrowest(*rates: Rate) -> Rate:
    """Return the rate of several links in series: minimum physical rate and its `basis`, and minimum expected rate."""
    limit = min(rates, key=lambda rate: rate.physical)
    return limit._replace(expected=min(rate.expected for rate in rates))


def gb(value: Fraction) -> str:
    return f"{float(value):.6g} GB/s"


def rate(
    what: str, physical: Fraction | str, expected: Fraction | str, source: Source, reference: str, each: str = ""
) -> Rate:
    """Return a Rate whose `basis` says where it comes from. `each` names what has this rate, for example `a link`."""
    bound, derated = Fraction(physical), Fraction(expected)
    unit = f" {each} and direction" if each else ""
    value = f"{gb(bound)}{unit}" + ("" if bound == derated else f", the library expects {gb(derated)}")
    return Rate(bound, derated, Assumption(what, value, source, reference))


LOCAL = rate("parts of one chip or host", "5000", "5000", "published", _NCCL)
"""Rate between parts that the library treats as a single part, such as a CPU and a network socket, or ranks on one
GPU."""

_NVLINKS = (
    (107, "NVLink 6", "50", "31.2", "links of Rubin"),
    (100, "NVLink 5", "50", "40.1", "NVIDIA B200 data sheet"),
    (90, "NVLink 4", "25", "20.6", "NVIDIA H100 data sheet"),
    (87, "NVLink 3", "25", "20", "NVIDIA A100 data sheet"),
    (86, "NVLink 3 of RTX and A40", "14.0625", "12", "NVIDIA A40 data sheet"),
    (80, "NVLink 3", "25", "20", "NVIDIA A100 data sheet"),
    (70, "NVLink 2", "25", "20", "NVIDIA V100 data sheet"),
    (60, "NVLink 1", "20", "18", "NVIDIA P100 data sheet"),
    (0, "NVLink 1", "20", "20", "NVIDIA P100 data sheet"),
)
_XGMI = (
    (("gfx95", "95"), "xGMI of MI350", "76.8", "48", "AMD MI355X data sheet"),
    (("gfx94", "94"), "xGMI of MI300", "64", "48", "AMD MI300X data sheet"),
    (("gfx90a", "910"), "xGMI of MI200", "50", "36", "AMD MI250X data sheet"),
    (("", ""), "xGMI of MI100 and before", "50", "24", "AMD MI100 data sheet, rounded up"),
)
_LANE = {  # GT/s: (generation, GB/s per lane after the line code, Mbit/s per lane in NCCL)
    "2.5": (1, Fraction(1, 4), 1500),
    "5": (2, Fraction(1, 2), 3000),
    "8": (3, Fraction(63, 64), 6000),
    "16": (4, Fraction(63, 32), 12000),
    "32": (5, Fraction(63, 16), 24000),
    "64": (6, Fraction(63, 8), 48000),
}
_NCCL_UNKNOWN_LANE = 6000
_ROUNDED = Fraction(1, 500)
_UNKNOWN_WIDTHS = (0, 63, 255)
_ALL_LANES = 16


def nvlink_rate(compute_capability: int) -> Rate:
    """Return the rate of one NVLink. Example: 25 GB/s for compute capability 90, of which NCCL expects 20.6."""
    first, name, physical, expected, sheet = next(entry for entry in _NVLINKS if compute_capability >= entry[0])
    found = rate(name, physical, expected, "published", f"{sheet}; {_NCCL}", "a link")
    return found if first <= 100 else found.as_guess(f"{name}, as fast as NVLink 5", "scale the links with `scaled`")


def xgmi_rate(architecture: str) -> Rate:
    """Return the rate of one xGMI link of an AMD GPU. `architecture`: gfx target; older dumps write 910 for gfx90a."""
    _, name, physical, expected, sheet = next(entry for entry in _XGMI if architecture.startswith(entry[0]))
    return rate(name, physical, expected, "published", f"{sheet}; {_RCCL}", "a link")


def c2c_rate(link_mb_per_s: int, count: int) -> Rate:
    value = Fraction(link_mb_per_s * count, 1000)
    return rate("NVLink-C2C of a GPU and its CPU", value, value, "file", "bw and count of <c2c>")


def pci_rate(speed: str, width: int, generation_if_unknown: int = 4, is_bridge: bool = False) -> Rate:
    """Return the rate of a PCI Express link of `width` lanes at a `speed` such as "16.0 GT/s PCIe".

    If the system does not know the speed, it is empty or "Unknown"; an unknown width is 0, 63 or 255. The rate is then
    a guess: the speed of PCI Express `generation_if_unknown` (NCCL expects 8 GT/s), or 16 lanes. Bridges in virtual
    machines report 2.5 GT/s and one lane, whatever their real rate, so both are treated as unknown.
    """
    number = lanes = None
    if speed.strip() and not speed.strip().startswith("Unknown"):
        match = re.fullmatch(r"([0-9]{1,3})(\.[0-9])? GT/s( PCIe)?", speed.strip())
        number = f"{match[1]}{match[2] or ''}".removesuffix(".0") if match else ""
        if number not in _LANE:
            way_out = f"choose from {', '.join(_LANE)} GT/s"
            raise InvalidInput("link_speed must be a speed of PCI Express", repr(speed), way_out)
    if width not in _UNKNOWN_WIDTHS:
        lanes = width
        if not 1 <= width <= 128:  # NCCL adds up the lanes of NICs that it joins
            raise InvalidInput("link_width must be a number of lanes from 1 to 128, or 0", width, "correct the file")
    if is_bridge and (number, lanes) == ("2.5", 1):
        number, lanes = None, None
    generation, lane, _ = _LANE[number] if number else _of_generation(generation_if_unknown)
    mbit = _LANE[number][2] if number else _NCCL_UNKNOWN_LANE
    count = lanes or _ALL_LANES
    name = f"PCI Express {generation}, {count} lanes"
    found = rate(name, count * lane, Fraction(count * mbit, 8000), "file", f"link_speed and link_width; {_NCCL}")
    if number and lanes:
        return found
    missing = " and ".join(name for name, known in (("speed", number), ("width", lanes)) if not known)
    return found.as_guess(
        f"PCI Express link without {missing}: {name}", "correct link_speed and link_width in the file"
    )


def lanes_of(value: Fraction, reference: str) -> Rate:
    """Return the rate of the PCI generation and lane count that fit `value`, a slot's rounded GB/s in an hwloc file."""
    for lanes in (16, 8, 4, 2, 1):
        for generation, lane, mbit in _LANE.values():
            if abs(value / (lane * lanes) - 1) < _ROUNDED:
                name = f"PCI Express {generation}, {lanes} lanes"
                expected = Fraction(lanes * mbit, 8000)
                return rate(name, lane * lanes, expected, "file", f"{reference}; {_NCCL}")
    return rate("PCI Express link of an unusual rate", value, value, "file", reference)


def pci_rate_of(generation: int, advice: str, is_known: bool) -> Rate:
    """Return the rate of an x16 slot of a PCI Express generation, marked as a guess unless `is_known`."""
    _, lane, mbit = _of_generation(generation)
    name = f"PCI Express {generation}, 16 lanes"
    found = rate(name, 16 * lane, Fraction(16 * mbit, 8000), "published", f"{advice}; {_NCCL}")
    return found if is_known else found.as_guess(f"slots of GPUs: {name}", advice)


def _of_generation(generation: int) -> tuple[int, Fraction, int]:
    return next(entry for entry in _LANE.values() if entry[0] == generation)


_AMD_CPUS = {  # family: (links and GT/s, the maximum GB/s between two sockets, GB/s in NCCL)
    23: ("EPYC 7001 and 7002: 4 xGMI of 16 lanes, 18 GT/s", "144", "16"),
    25: ("EPYC 7003 and 9004: 4 xGMI of 16 lanes, 32 GT/s", "256", "24"),
    26: ("EPYC 9005: 4 xGMI of 16 lanes, 32 GT/s", "256", "32"),
}
_INTEL_CPUS = (  # first model number in family 6, name and links, maximum GB/s between two sockets, GB/s in NCCL
    (0xCF, "5th Xeon: 4 UPI of 20 GT/s", "160", "40"),
    (0xAD, "6th Xeon: 6 UPI of 24 GT/s", "288", "40"),
    (0x8F, "4th Xeon: 4 UPI of 16 GT/s", "128", "22"),
    (0x55, "Xeon Scalable: 3 UPI of 11.2 GT/s", "67.2", "10"),
    (0, "Xeon E5 and E7: 3 QPI of 9.6 GT/s", "57.6", "6"),
)


def cpu_rate(attributes: Mapping[str, str], family: int, model: int) -> Rate:
    """Return the rate between two CPUs in a machine: the total of all links that CPUs of this type can have."""
    architecture, vendor = attributes.get("arch", ""), attributes.get("vendor", "")
    if architecture == "ppc64":
        return _between_cpus("POWER9: X-bus", "64", "32")
    if architecture == "arm64":
        return _between_cpus("Arm server: NVLink-C2C of Grace at most", "450", "6")
    if vendor == "AuthenticAMD":
        known = {0xAF: 25, 0xBF: 26}.get(family, family)  # some dumps write only the extended family
        return _between_cpus(*_AMD_CPUS.get(known, _AMD_CPUS[23]))
    if vendor == "GenuineIntel":
        if family != 6:
            return _between_cpus(*_INTEL_CPUS[-1][1:])
        if model in (0xAD, 0xAE, 0xAF):  # newer than their model numbers suggest
            return _between_cpus(*_INTEL_CPUS[1][1:])
        return _between_cpus(*next(entry[1:] for entry in _INTEL_CPUS if model >= entry[0] and entry[0] != 0xAD))
    return LOCAL.as_guess("links between CPUs of an unknown kind", "add arch, vendor, familyid and modelid")


def _between_cpus(kind: str, physical: str, expected: str) -> Rate:
    return rate(f"links between CPUs, {kind}", physical, expected, "published", f"vendor's data sheet; {_NCCL}")


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU model, or several models with equal links.

    architecture: compute capability, or gfx target for AMD
    links:        maximum number of NVLinks of a GPU; for AMD, number of xGMI links between two connected GPUs, or 0
                  if it differs by pair
    pci:          PCI Express generation of the GPU's slot
    """

    pattern: str
    name: str
    architecture: int | str
    links: int
    pci: int

    @property
    def link_rate(self) -> Rate:
        architecture = self.architecture
        return nvlink_rate(architecture) if isinstance(architecture, int) else xgmi_rate(architecture)


GPU_MODELS = (
    GpuModel(r"G?B300", "B300", 103, 18, 6),
    GpuModel(r"G?B[12]00", "B200", 100, 18, 5),
    GpuModel(r"GB10", "GB10", 121, 0, 5),
    GpuModel(r"GH200|H[12]00|H20", "H100", 90, 18, 5),
    GpuModel(r"H800", "H800", 90, 8, 5),
    GpuModel(r"A[18]00", "A100", 80, 12, 4),
    GpuModel(r"A30", "A30", 80, 4, 4),
    GpuModel(r"A40|(?:RTX )?A(?:4500|5000|5500|6000)|RTX ?3090(?: Ti)?", "A40", 86, 4, 4),
    GpuModel(r"V100S?|GV100", "V100", 70, 6, 3),
    GpuModel(r"RTX 20[78]0(?: Ti| Super)?|TITAN RTX|Quadro RTX [5-8]000", "RTX 2080 Ti", 75, 2, 3),
    GpuModel(r"G?P100", "P100", 60, 4, 3),
    GpuModel(r"L4|L20|L40S?|RTX 40\d0(?: \w+)?|RTX \d000 Ada|A10G?|A16|A2", "L40S", 89, 0, 4),
    GpuModel(r"RTX PRO \d000|RTX 50\d0", "RTX PRO 6000", 120, 0, 5),
    GpuModel(r"T4|TITAN V", "T4", 75, 0, 3),
    GpuModel(r"MI35[05]X?", "MI355X", "gfx950", 1, 5),
    GpuModel(r"MI300A", "MI300A", "gfx942", 2, 5),
    GpuModel(r"MI3(?:00|08|25)X?(?!A)", "MI300X", "gfx942", 1, 5),
    GpuModel(r"MI210", "MI210", "gfx90a", 0, 4),
    GpuModel(r"MI250X?|gfx90a", "MI250X", "gfx90a", 0, 4),
    GpuModel(r"MI100|gfx908", "MI100", "gfx908", 1, 4),
    GpuModel(r"MI[56]0|gfx906", "MI60", "gfx906", 1, 4),
)
_ABOUT_GPUS = re.compile(r"NVIDIA|GeForce|Tesla|Quadro|TITAN|AMD|Instinct|GPU|MARKET|gfx|Card", re.IGNORECASE)


def models_named(text: str) -> tuple[GpuModel, ...]:
    """Return the GPU models named in `text`, in the order of `GPU_MODELS`. Only lines about GPUs are considered."""
    lines = "\n".join(line for line in text.splitlines() if _ABOUT_GPUS.search(line))
    return tuple(model for model in GPU_MODELS if re.search(rf"(?<![A-Za-z0-9])(?:{model.pattern})(?![0-9])", lines))


def is_module(model: GpuModel, text: str) -> bool:
    """Return whether `text` names `model` as a module (SXM) whose NVLinks lead to a switch, rather than as a card."""
    suffix = re.search(rf"(?:{model.pattern})[\w -]*?(SXM|PCIE\b|NVL\b)", text, re.IGNORECASE)
    return suffix[1].upper() == "SXM" if suffix else model.links > 6  # a model with fewer NVLinks may be a card


def model_called(name: str) -> GpuModel:
    """Return the GPU model that an option names. Raises InvalidInput for an unknown name."""
    found = models_named(f"GPU {name}")
    if len(found) != 1:
        known = ", ".join(model.name for model in GPU_MODELS)
        raise InvalidInput("unknown GPU model '{}'", name, f"choose from {known}, or a relative")
    return found[0]
