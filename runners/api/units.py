"""Parses and formats message sizes and durations, and finds sizes that programs can divide into chunks."""

import logging
import math
import re
from collections.abc import Iterable
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology

MAX_SIZE_BYTES = 2**40
MAX_SIZES = 1000

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_DECIMAL_UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}
_SIZE = re.compile(r"([0-9]{1,15})\s*(?:([KMG])(IB|B)?|B)?", re.IGNORECASE)
_WAY_OUT = "write a size such as 64KiB, a list (1M,4M) or a range (4KiB:1GiB:x4); 1M = 1MiB = 2^20 bytes, 1MB = 10^6"
_log = logging.getLogger(__name__)


def parse_size(text: str) -> int:
    """Return the size in bytes that `text` describes: `4096`, `64K`, `64KiB`, `1M`, `1GiB`; K, M and G are binary.

    Only KB, MB and GB are decimal, as in SI: `1MB` is 10^6 bytes. If `text` has such a unit, the conversion is logged.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidInput("cannot read the size '{}'", text, _WAY_OUT)
    unit, suffix = (match[2] or "").upper(), (match[3] or "").upper()
    is_decimal = suffix == "B"
    size_bytes = int(match[1]) * (_DECIMAL_UNITS if is_decimal else _UNITS)[unit]
    if is_decimal:
        _log.info(
            "%s is %d bytes; %s%siB would be %d", text.strip(), size_bytes, match[1], unit, int(match[1]) * _UNITS[unit]
        )
    if not 1 <= size_bytes <= MAX_SIZE_BYTES:
        raise InvalidInput("a size must be between 1 byte and 1 TiB", text, _WAY_OUT)
    return size_bytes


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes in a comma-separated list of sizes and ranges `FIRST:LAST:xFACTOR`, without duplicates.

    A range without a factor (also written `FIRST-LAST`, as in tables) has the factor 4.

    >>> parse_sizes("1000,4KiB:64KiB:x4")
    (1000, 4096, 16384, 65536)
    """
    sizes: dict[int, None] = {}
    for part in text.split(","):
        if re.search(r":|\w *-", part) is None:
            sizes[parse_size(part)] = None
            continue
        ends = part.split(":") if ":" in part else part.split("-")
        if len(ends) == 2:
            ends.append("x4")
        if len(ends) != 3 or not re.fullmatch(r"x[0-9]{1,6}", ends[2].strip().lower()):
            raise InvalidInput("a range of sizes must have the form FIRST:LAST or FIRST:LAST:xFACTOR", part, _WAY_OUT)
        size, last, factor = parse_size(ends[0]), parse_size(ends[1]), int(ends[2].strip()[1:])
        if factor < 2 or size > last:
            raise InvalidInput("a range of sizes must rise by a factor of 2 or more", part, _WAY_OUT)
        while size <= last:
            sizes[size] = None
            size *= factor
    if len(sizes) > MAX_SIZES:
        raise InvalidInput(f"a list must hold at most {MAX_SIZES} sizes", f"{len(sizes)} sizes", "ask for fewer")
    return tuple(sizes)


def format_size(size_bytes: int) -> str:
    """Return the shortest exact text that `parse_size` reads back: 65536 is `64KiB`, 1000 is `1000B`."""
    for unit in ("G", "M", "K"):
        if size_bytes % _UNITS[unit] == 0:
            return f"{size_bytes // _UNITS[unit]}{unit}iB"
    return f"{size_bytes}B"


def divisible_size(size_bytes: int, element_bytes: int, chunk_counts: Iterable[int]) -> int:
    """Return the smallest size >= `size_bytes` that every chunk count divides into equal chunks of whole elements."""
    granule = element_bytes * math.lcm(*chunk_counts)
    return -(-size_bytes // granule) * granule


def format_ms(seconds: float) -> str:
    """Format `seconds` in ms with three significant digits, as in `0.0123 ms`, or as an integer from 1000 ms on."""
    value = seconds * 1e3
    return f"{value:.0f} ms" if value >= 999.5 else f"{value:.3g} ms"


def format_us(seconds: float) -> str:
    """Format `seconds` in us with four significant digits, as in `12.34 us`, or as an integer from 10,000 us on."""
    value = seconds * 1e6
    return f"{value:.0f} us" if value >= 9999.5 else f"{value:.4g} us"


def full_bandwidth(topology: Topology) -> Fraction:
    """Return the bandwidth in `topology` that corresponds to the rate `link_mbps` of a fabric or a run: 1 if bandwidths
    count links, else the largest bandwidth. Other links get proportional rates.
    """
    return Fraction(1) if topology.bandwidth_unit == "link" else max(topology.links.bandwidths)
