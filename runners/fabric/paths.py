"""Rates and latencies of the links of a plan, and the links that a stream takes."""

from __future__ import annotations

from fractions import Fraction

from chorale.runners.fabric.plan import FabricPlan

Stream = tuple[int, int]
"""Source and target rank."""

Arc = tuple[int, int]
"""Nodes from and to which a link goes."""


def arc_rates(plan: FabricPlan) -> dict[Arc, int]:
    """Return the bits per second of all links of the topology."""
    return {arc: rate for cable in plan.cables for arc, rate in zip(cable.arcs, cable.bits_per_s, strict=True) if rate}


def arc_latency_us(plan: FabricPlan) -> dict[Arc, Fraction]:
    """Return the latencies of all links, ways back included."""
    return {
        arc: latency_us for cable in plan.cables for arc, latency_us in zip(cable.arcs, cable.latency_us, strict=True)
    }


def path_of(plan: FabricPlan, stream: Stream) -> list[Arc]:
    """Return the links that a stream takes, in order."""
    node, target = stream
    path = []
    while node != target:
        path.append((node, plan.routes[node][target]))
        node = plan.routes[node][target]
    return path
