"""The network: compute nodes, switches and directed links with exact bandwidth and latency.

Also the abilities of switches, the assumptions about a machine from which a network was read, and the transpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import content_id
from chorale.synth.topology.links import Links

BandwidthUnit = Literal["link", "GB/s", "Gbit/s"]

MAX_NODES = 2**20
MAX_LINKS = 2**27


@dataclass(frozen=True, slots=True)
class SwitchAbility:
    """What one switch can do with data that it receives, besides forwarding it.

    multicast:         whether it can send identical copies to several neighbours
    reduce:            whether it can add up data from several neighbours and forward the sum
    reduce_bandwidth:  maximum output rate of sums, in the topology's bandwidth unit; None if only the links limit it
    reduce_types:      supported element types, for example float32; empty if all are supported
    reduce_operations: supported operations, for example sum; empty if all are supported
    """

    multicast: bool = False
    reduce: bool = False
    reduce_bandwidth: Fraction | None = None
    reduce_types: tuple[str, ...] = ()
    reduce_operations: tuple[str, ...] = ()

    @property
    def is_able(self) -> bool:
        return self.multicast or self.reduce


Abilities = Mapping[int, SwitchAbility]
"""Abilities of switches by node; a switch without an entry only forwards data."""

NVSWITCH = SwitchAbility(
    multicast=True,
    reduce=True,
    reduce_types=("float16", "bfloat16", "float32", "float64", "int32", "uint32", "int64", "uint64"),
    reduce_operations=("sum", "min", "max"),
)
"""NVSwitch 3 and later, with NVLink SHARP: the types and operations for which NCCL uses it (min and max not for float32
and float64). Source: NVIDIA, "NVLink and NVSwitch"; NCCL 2.2x, src/include/device.h."""


Source = Literal["file", "published", "guess"]


@dataclass(frozen=True, slots=True)
class Assumption:
    """A fact on which the network of a machine relies, such as the rate of its NVLinks.

    source: "file" if the file or an option states it, "published" for data sheets and the source code of libraries
    reference: the attribute, option, data sheet or source file; for guesses, what to do if the guess is wrong
    """

    what: str
    value: str
    source: Source
    reference: str


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """The assumptions behind a network that was read from a machine's file.

    guessed:  pairs of node ids whose links have a guessed rate
    expected: the links at the rates that the machine's library expects (lower than physical rates); None if unknown
    network:  id of the topology to which `expected` belongs; networks derived from it have no expected rates
    """

    assumptions: tuple[Assumption, ...]
    guessed: frozenset[tuple[str, str]] = frozenset()
    expected: Links | None = None
    network: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Topology:
    """A directed multigraph of compute nodes and switches.

    Compute nodes come first, in rank order, then switches, so that a compute node's index is its rank. `spec` is the
    text from which the network was built. `automorphisms` generate a group of known symmetries: each is an int32
    permutation of all nodes that preserves node kinds and maps links onto links of the same bandwidth and latency.
    `id` is the content id of nodes, links and unit, so different specs for the same network give the same id.
    `abilities` lists the switches that multicast or add; all other switches only forward. `provenance` is set for
    networks read from a machine's file and does not affect `id`.
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
            facts["abilities"] = [[node, *astuple(ability)] for node, ability in sorted(self.abilities.items())]
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
        """B, the bandwidth out of a node, in links; None unless direct-connect, regular and of unit capacity."""
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
