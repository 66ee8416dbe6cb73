"""Costs and rates in units that people know, each with its exact fraction beside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from chorale.runners.api.units import format_size
from chorale.synth.identity import rational_text

_BYTES_PER_S = {"GB/s": Fraction(10**9), "Gbit/s": Fraction(10**9, 8)}
_SECONDS = ((1, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"), (1e-12, "ps"), (1e-15, "fs"))
SHOWN_ID = 16
_LONGEST = 24
"""Digits of a fraction that people read; JSON documents have all."""


def short_id(content_id: str) -> str:
    """Return the beginning of a content id, enough to tell things apart; JSON documents have all of it."""
    return content_id[:SHOWN_ID]


def decimal(value: Fraction | float) -> str:
    """Return two places, or what small and large numbers need: `0.94`, `4.27`, `2`, `347`, `0.00123`."""
    number = float(value)
    if not 0.1 <= number < 100:
        return f"{number:.0f}" if number >= 100 else f"{number:.3g}"
    return f"{number:.2f}".rstrip("0").rstrip(".")


def with_fraction(text: str, exact: Fraction) -> str:
    """Return `text`, and the exact value beside it where that is no whole number."""
    fraction = rational_text(exact)
    return text if exact.denominator == 1 or len(fraction) > _LONGEST else f"{text} ({fraction})"


def bandwidth_time_text(factor: Fraction) -> str:
    """Return a bandwidth factor, T_B / (M / B), in words: `0.94 × size / node bandwidth (15/16)`."""
    return with_fraction(f"{decimal(factor)} × size / node bandwidth", factor)


def time_per_byte_text(time_per_byte: Fraction, unit: str) -> str:
    """Return T_B / M in time: `2.88 ps/byte (3/1040 per GB/s)`; over unit links `0.23 × size / link rate (15/64)`."""
    if unit not in _BYTES_PER_S:
        return with_fraction(f"{decimal(time_per_byte)} × size / link rate", time_per_byte)
    text = f"{seconds_text(time_per_byte / _BYTES_PER_S[unit])}/byte"
    fraction = rational_text(time_per_byte)
    return text if len(fraction) > _LONGEST else f"{text} ({fraction} per {unit})"


def algbw_text(time_per_byte: Fraction, unit: str) -> str:
    """Return M / T_B: `346.7 GB/s (1040/3)`; over unit links `4.27 × link rate (64/15)`."""
    rate = 1 / time_per_byte
    if unit not in _BYTES_PER_S:
        return with_fraction(f"{decimal(rate)} × link rate", rate)
    return with_fraction(f"{float(rate):.4g} {unit}", rate)


def seconds_text(seconds: Fraction | float) -> str:
    """Return a duration with three digits in the unit that suits it: `2.88 ps`, `4.03 s`."""
    value = float(seconds)
    scale, unit = next((item for item in _SECONDS if abs(value) >= item[0]), _SECONDS[-1])
    return f"{value / scale:.3g} {unit}"


def speed_text(time_ratio: float) -> str:
    """Return what a ratio of times means: 0.17 is `5.9× faster than`, 2 is `2× slower than`."""
    if round(time_ratio, 3) == 1:
        return "as fast as"
    if time_ratio < 1:
        return f"{1 / time_ratio:.3g}× faster than"
    return f"{time_ratio:.3g}× slower than"


def fact_label(name: str) -> str:
    """Return what people read beside a fact of a document: its key in words."""
    return _LABELS.get(name, name.replace("_", " "))


def fact_text(name: str, value: Any, unit: str) -> str:
    """Return a fact of a document for people: costs in their units, ids shortened; `unit` of the bandwidths."""
    if value is None:
        return "not defined here"
    if name in _TEXTS:
        return _TEXTS[name](value, unit)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


_TEXTS: Mapping[str, Callable[[Any, str], str]] = {
    "id": lambda value, _unit: short_id(value),
    "schedule": lambda value, _unit: short_id(value),
    "bandwidth_factor": lambda value, _unit: bandwidth_time_text(Fraction(value)),
    "time_per_byte": lambda value, unit: time_per_byte_text(Fraction(value), unit),
    "algbw": lambda value, unit: f"{decimal(value)} × link rate" if unit == "link" else f"{value:.4g} {unit}",
    "digest": lambda value, _unit: short_id(value),
    "size_bytes": lambda value, _unit: format_size(value),
    "max_bytes": lambda value, _unit: format_size(value),
    "time_us": lambda value, _unit: seconds_text(value / 1e6),
    "latency_s": lambda value, _unit: seconds_text(value) if value else "0",
}
_LABELS: Mapping[str, str] = {
    "bandwidth_factor": "bandwidth time",
    "size_bytes": "buffer size",
    "max_bytes": "right up to",
    "time_us": "predicted time",
    "latency_s": "latency",
    "largest": "most on a link",
    "smallest": "least on a link",
    "total": "on all links",
    "threadblocks_max": "thread blocks, most",
    "steps_max": "steps of a block, most",
    "scratch_chunks_max": "scratch chunks, most",
    "fixed": "sums: same bits in every run",
    "same_on_all_ranks": "sums: same bits on all ranks",
    "independent_of_position": "sums: one order for all chunks",
    "orders": "sums: different orders",
    "depth": "sums: additions in a row",
    "digest": "sums: id of the orders",
}
