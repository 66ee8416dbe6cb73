"""The network: compute nodes, switches and directed links with exact bandwidth and latency.

Also its transpose (every link reversed), and the conversion of the bandwidth unit to bytes per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.topology.abilities import Abilities
from chorale.synth.topology.links import Links
from chorale.synth.topology.provenance import Assumption, Provenance

BandwidthUnit = Literal["link", "GB/s", "Gbit/s"]

MAX_NODES = 2**20
MAX_LINKS = 2**27


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A directed multigraph of compute nodes and switches.

    Compute nodes come first, in rank order, then switches, so that a compute node's index is its rank. `spec` is the
    text from which the network was built; it is not part of its identity. `automorphisms` generate a group of known
    symmetries: each is an int32 permutation of all nodes that preserves node kinds and maps links onto links of the
    same bandwidth and latency. `id` is the content id of nodes, links and unit, which different specs for the same
    network share. `abilities` lists the switches that multicast or add; all other switches only forward. `provenance`
    is set for networks read from a machine's file and is not part of the identity.
    """

    spec: str
    node_ids: tuple[str, ...]
    compute_count: int
    links: Links
    bandwidth_unit: BandwidthUnit = "link"
    automorphisms: tuple[NDArray[np.int32], ...] = ()
    abilities: Abilities = field(default_factory=dict)
    provenance: Provenance | None = None
    id: str = field(init=False)

    def __post_init__(self) -> None:
        links = self.links
        facts: dict[str, Any] = {
            "format": "chorale-topology/1",
            "bandwidth_unit": self.bandwidth_unit,
            "nodes": self.node_ids,
            "compute_count": self.compute_count,
            "bandwidths": links.bandwidths,
            "latencies_s": links.latencies_s,
        }
        if self.abilities:
            facts["abilities"] = [[node, *ability.facts()] for node, ability in sorted(self.abilities.items())]
        object.__setattr__(
            self, "id", content_id(facts, (links.src, links.dst, links.bandwidth_class, links.latency_class))
        )

    def __repr__(self) -> str:
        switches = f", {self.switch_count} switches" if self.switch_count else ""
        return f"<{self.spec}: {self.compute_count} ranks{switches}, {len(self.links)} links>"

    @property
    def node_count(self) -> int:
        return len(self.node_ids)

    @property
    def switch_count(self) -> int:
        return self.node_count - self.compute_count

    @property
    def degree(self) -> int | None:
        """In- and out-degree of every compute node, counting parallel links and self-loops; None if degrees differ."""
        incoming = np.bincount(self.links.dst, minlength=self.node_count)[: self.compute_count]
        outgoing = np.bincount(self.links.src, minlength=self.node_count)[: self.compute_count]
        first = int(incoming[0])
        return first if bool(np.all(incoming == first) and np.all(outgoing == first)) else None

    @property
    def node_bandwidth(self) -> Fraction | None:
        """B, the bandwidth out of a node in links, for regular unit-capacity direct-connect networks, else None."""
        if self.switch_count or self.bandwidth_unit != "link" or self.links.bandwidths != (Fraction(1),):
            return None
        return None if self.degree is None else Fraction(self.degree)

    @property
    def is_eulerian(self) -> bool:
        """Whether every node has as much incoming as outgoing bandwidth."""
        integer, _ = self.links.integer_bandwidths()
        balance = np.zeros(self.node_count, dtype=object)
        np.add.at(balance, self.links.dst, integer.astype(object))
        np.subtract.at(balance, self.links.src, integer.astype(object))
        return not np.any(balance)

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Assumptions about the machine from which the network was read; empty for other networks."""
        return () if self.provenance is None else self.provenance.assumptions

    @property
    def expected(self) -> Topology | None:
        """The same network at the rates that the machine's library expects; None if they are unknown."""
        known = self.provenance
        if known is None or known.expected is None or known.network != self.id:
            return None
        return replace(self, links=known.expected, automorphisms=(), provenance=None)

    def is_guessed(self, crossing: NDArray[np.bool_] | None = None) -> bool:
        """Return whether the rate of any link is a guess. Given `crossing` (bool per link), only these links count."""
        guessed = self.provenance.guessed if self.provenance is not None else frozenset()
        if not guessed:
            return False
        ends = zip(self.links.src.tolist(), self.links.dst.tolist(), strict=True)
        found = np.array([(self.node_ids[src], self.node_ids[dst]) in guessed for src, dst in ends], dtype=bool)
        return bool((found if crossing is None else found & crossing).any())

    def node_kind(self, node: int) -> Literal["compute", "switch"]:
        return "compute" if node < self.compute_count else "switch"


def transpose(topology: Topology) -> Topology:
    """Return `topology` with every link reversed; its spec is `transpose(<spec>)`."""
    return transpose_with_links(topology)[0]


def transpose_with_links(topology: Topology) -> tuple[Topology, NDArray[np.int32]]:
    """Return (transpose, int32 per link of the transpose: the link of `topology` that it reverses).

    Parallel links keep their relative order. Symmetries remain symmetries. O(L log L).
    """
    links = topology.links
    origin = np.lexsort((links.dst, links.src)).astype(np.int32)
    turned = replace(
        links,
        src=links.dst[origin],
        dst=links.src[origin],
        bandwidth_class=links.bandwidth_class[origin],
        latency_class=links.latency_class[origin],
    )
    return replace(topology, spec=f"transpose({topology.spec})", links=turned), origin


_BYTES_PER_SECOND: Mapping[str, int] = {"GB/s": 10**9, "Gbit/s": 125 * 10**6}


def bytes_per_second(topology: Topology) -> int:
    """Return the bytes per second that a link of bandwidth 1 carries.

    Raises InvalidInput if the bandwidth unit is "link": such a network only has relative rates.
    """
    unit = topology.bandwidth_unit
    if unit not in _BYTES_PER_SECOND:
        rule = "a size in bytes needs link rates in GB/s or Gbit/s, but the links of {} have none"
        way_out = "give the rate of a link with --link-gbps, or leave out the size"
        raise InvalidInput(rule, topology.spec, way_out)
    return _BYTES_PER_SECOND[unit]
