"""A bound with the cuts that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound on T_B / M (in 1 / bandwidth_unit) with the node sets that prove it.

    kind "into", "out-of": what the collective has to move into (out of) `nodes`, over the bandwidth that leads there.
    kind "received", "sent": allreduce makes p groups of ranks receive (send) 2 (p - 1) M in all, over the sum of the
        bandwidths into (out of) them. The groups are `parts`, which may hold switches too, and besides
        every rank that is in none of them by itself.
    k: the bound holds for schedules of k trees per shard; None: for all schedules.
    """

    kind: str
    nodes: tuple[int, ...]
    value: Fraction
    k: int | None = None
    parts: tuple[tuple[int, ...], ...] = ()

    def to_json(self, topology: Topology) -> Mapping[str, Any]:
        """Return the JSON-able form, nodes by id."""
        document: dict[str, Any] = {"kind": self.kind, "nodes": self._names(topology, self.nodes)}
        if self.kind in ("received", "sent"):
            document["parts"] = [self._names(topology, part) for part in self.parts]
        if self.k is not None:
            document["k"] = self.k
        return document | {"time_per_byte": str(self.value)}

    @staticmethod
    def _names(topology: Topology, nodes: tuple[int, ...]) -> list[str]:
        return [topology.node_ids[node] for node in nodes]
