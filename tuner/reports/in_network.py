"""Bounds with switches that multicast and add, and of ranks alone, as JSON."""

from __future__ import annotations

from typing import Any

from chorale.synth.bounds.optimum import Bound, optimum
from chorale.synth.collective import ALLGATHER
from chorale.synth.identity import rational_text
from chorale.synth.topology.topology import Topology


def bound_facts(topology: Topology, bound: Bound | None) -> dict[str, Any] | None:
    """Return a bound as JSON; None where there is none."""
    if bound is None:
        return None
    return {
        "time_per_byte": rational_text(bound.value),
        "algbw": float(1 / bound.value),
        "bottleneck_cut": [topology.node_ids[node] for node in bottleneck_of(topology, bound)],
        "certificate": dict(bound.to_json(topology)),
    }


def bottleneck_of(topology: Topology, bound: Bound) -> tuple[int, ...]:
    """Return the nodes that a bound is about; of ranks by themselves, the bottleneck of allgather."""
    if bound.nodes or bound.parts:
        return bound.nodes or bound.parts[0]
    return optimum(topology, ALLGATHER).cut
