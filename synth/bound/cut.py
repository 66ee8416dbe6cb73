"""A cut certificate: data that must cross into a set of nodes, over the bandwidth that leads into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on T_B / M (in 1 / bandwidth_unit) with the facts that prove it.

    kind "into":   all shards that start outside `nodes` must come in: (N - n) / N over the bandwidth into it.
    kind "out-of": every rank inside holds a part of every sum that ends outside: the same, over the bandwidth out.
    kind "across-in", "across-out": allreduce moves the whole vector across any cut, each way.
    kind "volume": allreduce makes ranks receive 2 (N - 1) M in total, over all bandwidth into ranks; no nodes.
    """

    kind: str
    nodes: tuple[int, ...]
    value: Fraction

    def to_json(self, topology: Topology) -> Mapping[str, Any]:
        """Return the JSON-able form, nodes by id."""
        return {
            "kind": self.kind,
            "nodes": [topology.node_ids[node] for node in self.nodes],
            "time_per_byte": str(self.value),
        }
