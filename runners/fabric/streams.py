"""Streams between ranks that keep the links of a plan busy, and the time that links need for what streams carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fractions import Fraction

from chorale.runners.fabric.link_shape import carried_bytes
from chorale.runners.fabric.paths import Arc, Stream, arc_latency_us, arc_rates, path_of
from chorale.runners.fabric.plan import FabricPlan


def busy_streams(plan: FabricPlan) -> list[Stream]:
    """Return (source, target) pairs of ranks, sorted.

    Each rank sends to all neighbours it has a link to. Behind switches it sends to the rank half of the way round
    all ranks, which is in another box where there are several, and half of the way round those at the same switch.
    """
    found: set[Stream] = set()
    at_switch: dict[int, list[int]] = {}
    for src, dst in sorted(arc_rates(plan)):
        if max(src, dst) < plan.compute_count:
            found.add((src, dst))
        elif src < plan.compute_count:
            at_switch.setdefault(dst, []).append(src)
            found.add((src, (src + plan.compute_count // 2) % plan.compute_count))
    for ranks in at_switch.values():
        half = len(ranks) // 2
        found |= {(rank, ranks[(place + half) % len(ranks)]) for place, rank in enumerate(ranks)}
    return sorted((source, target) for source, target in found if source != target)


def fair_rates(plan: FabricPlan, streams: Iterable[Stream]) -> dict[Stream, Fraction]:
    """Return the max-min fair rates of `streams` in bits per second. O(streams * hops * links)."""
    capacity = {arc: Fraction(rate) for arc, rate in arc_rates(plan).items()}
    waiting = {stream: path_of(plan, stream) for stream in streams}
    rates: dict[Stream, Fraction] = {}
    while waiting:
        users: dict[Arc, int] = {}
        for path in waiting.values():
            for arc in path:
                users[arc] = users.get(arc, 0) + 1
        share, tightest = min((capacity[arc] / count, arc) for arc, count in users.items())
        for stream in [stream for stream, path in waiting.items() if tightest in path]:
            rates[stream] = share
            for arc in waiting.pop(stream):
                capacity[arc] -= share
    return rates


def needed_s(plan: FabricPlan, sizes_bytes: Mapping[Stream, int], mtu_bytes: int) -> float:
    """Return the least time in which the links carry streams of these sizes that start together, headers included.

    That is the time of the busiest link, and of no stream less than its bytes at the slowest link of its path plus
    the latency of all of it.
    """
    rates, latency_us = arc_rates(plan), arc_latency_us(plan)
    load: dict[Arc, int] = {}
    longest = 0.0
    for stream, size_bytes in sizes_bytes.items():
        path, carried = path_of(plan, stream), carried_bytes(size_bytes, mtu_bytes)
        waiting_s = float(sum(latency_us[arc] for arc in path)) / 1e6
        longest = max(longest, 8 * carried / min(rates[arc] for arc in path) + waiting_s)
        for arc in path:
            load[arc] = load.get(arc, 0) + carried
    return max(longest, *(8 * carried / rates[arc] for arc, carried in load.items()))
