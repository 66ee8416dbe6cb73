"""Streams between ranks that keep a fabric's links busy, and what they would get if only links set limits."""

from __future__ import annotations

from fractions import Fraction

from chorale.runners.fabric.plan import FabricPlan

Stream = tuple[int, int]
Arc = tuple[int, int]


def busy_streams(plan: FabricPlan) -> list[Stream]:
    """Return (source, target) pairs of ranks, sorted.

    Each rank sends to all neighbours it has a link to. Behind switches it sends to the rank half of the way round
    all ranks, which is in another box where there are several, and half of the way round those at the same switch.
    """
    found: set[Stream] = set()
    at_switch: dict[int, list[int]] = {}
    for src, dst in sorted(_capacities(plan)):
        if max(src, dst) < plan.compute_count:
            found.add((src, dst))
        elif src < plan.compute_count:
            at_switch.setdefault(dst, []).append(src)
            found.add((src, (src + plan.compute_count // 2) % plan.compute_count))
    for ranks in at_switch.values():
        half = len(ranks) // 2
        found |= {(rank, ranks[(place + half) % len(ranks)]) for place, rank in enumerate(ranks)}
    return sorted((source, target) for source, target in found if source != target)


def fair_bits_per_s(plan: FabricPlan) -> Fraction:
    """Return what all links together carry of `busy_streams` at max-min fair rates. O(streams * hops * links)."""
    capacity = {arc: Fraction(rate) for arc, rate in _capacities(plan).items()}
    waiting = {stream: _path(plan, stream) for stream in busy_streams(plan)}
    total = Fraction(0)
    while waiting:
        users: dict[Arc, int] = {}
        for path in waiting.values():
            for arc in path:
                users[arc] = users.get(arc, 0) + 1
        share, tightest = min((capacity[arc] / count, arc) for arc, count in users.items())
        for stream in [stream for stream, path in waiting.items() if tightest in path]:
            for arc in waiting.pop(stream):
                capacity[arc] -= share
                total += share
    return total


def _capacities(plan: FabricPlan) -> dict[Arc, int]:
    return {
        arc: rate
        for cable in plan.cables
        for arc, rate in zip((cable.nodes, cable.nodes[::-1]), cable.bits_per_s, strict=True)
        if rate
    }


def _path(plan: FabricPlan, stream: Stream) -> list[Arc]:
    node, target = stream
    path = []
    while node != target:
        path.append((node, plan.routes[node][target]))
        node = plan.routes[node][target]
    return path
