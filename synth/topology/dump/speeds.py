"""Bandwidths in GB/s that NCCL and RCCL reckon with, from what their topology dumps say about a part.

The numbers are facts about those libraries (NCCL 2.2x src/graph/topo.h and topo.cc, RCCL src/graph/topo.h): what
a link carries in practice, below its data sheet. A dump does not hold them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from chorale.synth.errors import InvalidInput

LOCAL = Fraction(5000)
"""Parts that the library takes for one, such as a CPU and a NIC without a PCI address."""

_NVLINK = ((100, "40.1"), (90, "20.6"), (87, "20"), (86, "12"), (70, "20"), (60, "18"))
_OLDEST_NVLINK = Fraction(20)
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
    known = (bandwidth for first, bandwidth in _NVLINK if compute_capability >= first)
    return Fraction(next(known, _OLDEST_NVLINK))


def xgmi_bandwidth(architecture: str) -> Fraction:
    """Return the bandwidth of one xGMI link of an AMD GPU; older dumps write gfx90a as 910."""
    known = (bandwidth for prefix, bandwidth in _XGMI if architecture.startswith(prefix))
    return Fraction(next(known, _OTHER_XGMI))


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
    known = (bandwidth for first, bandwidth in _INTEL_XEONS if model >= first)
    return Fraction(next(known, _OLDEST_XEON))


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
