"""Plans a fabric for a topology: namespaces, cables between them and routes. Nothing here touches the kernel."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from chorale.runners.fabric.link_options import LinkOptions, LinkOverride
from chorale.synth.errors import InvalidInput
from chorale.synth.topology.distance import distances_to
from chorale.synth.topology.topology import Topology


def next_hops(topology: Topology) -> tuple[tuple[int, ...], ...]:
    """Return the neighbour that each node (first index) uses towards each rank (second index).

    Every way is one of fewest links, so that a neighbour is reached over the link to it and nothing goes in circles.
    Of several next nodes it takes the one of number node + rank modulo their count, in rising order, so that
    traffic spreads over equal ways without any randomness. A rank's entry for itself is its own number. Raises
    InvalidInput for a network that is not strongly connected. O(ranks * links).
    """
    hops = distances_to(topology, np.arange(topology.compute_count)).astype(int).tolist()
    neighbours: list[set[int]] = [set() for _ in range(topology.node_count)]
    for src, dst in zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True):
        neighbours[src].add(dst)
    return tuple(
        tuple(_next_hop(node, rank, sorted(neighbours[node]), hops[rank]) for rank in range(topology.compute_count))
        for node in range(topology.node_count)
    )


def _next_hop(node: int, rank: int, neighbours: list[int], hops: list[int]) -> int:
    if node == rank:
        return rank
    nearer = [neighbour for neighbour in neighbours if hops[neighbour] == hops[node] - 1]
    return nearer[(node + rank) % len(nearer)]


MAX_NODES = 256
NODE_DEVICE = "node"
"""The device that holds a rank's address; what a runtime must be told to use where it asks for an interface."""

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,22}[A-Za-z0-9])?")
_FIRST_ADDRESS = ipaddress.IPv4Address("10.99.0.1")
_SLOWEST_BITS_PER_S = 100_000
_FASTEST_BITS_PER_S = 100_000_000_000


@dataclass(frozen=True, slots=True)
class Cable:
    """A pair of connected devices between two neighbouring nodes.

    All else is for the direction from the first node to the second, then for that back.

    bits_per_s: of parallel links together; 0 where the topology has no link that way, and only acknowledgements may
                pass, at the rate of the other direction
    latency_us: what a packet takes besides its bytes at the rate
    loss:       the part of all packets that never comes out
    """

    nodes: tuple[int, int]
    bits_per_s: tuple[int, int]
    latency_us: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    loss: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))

    @property
    def arcs(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Both directions as (from, to)."""
        return self.nodes, self.nodes[::-1]


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """Everything that has to be set up for a fabric called `name`.

    Nodes are numbered as in the topology: ranks first, then switches.
    cables: one per pair of neighbours, sorted.
    routes: `routes[node][rank]` is the neighbour to which `node` hands what is for `rank` (itself: its own number).
    """

    name: str
    compute_count: int
    cables: tuple[Cable, ...]
    routes: tuple[tuple[int, ...], ...]

    @property
    def bits_per_s(self) -> int:
        """What all links carry together when all are busy."""
        return sum(sum(cable.bits_per_s) for cable in self.cables)


def plan_fabric(topology: Topology, link_mbps: Fraction, name: str, options: LinkOptions | None = None) -> FabricPlan:
    """Return the plan of `topology` with links of `link_mbps` (10^6 bit/s) times their capacity.

    As on the local runner that is the rate of a link of bandwidth 1 where the unit is links, else of the fastest
    link: GB/s fabrics become scale models with the right proportions. Raises InvalidInput for a network that is too
    large, a rate out of reach, an override of a link that is not there, or a bad name. O(ranks * links).
    """
    require_name(name)
    if topology.node_count > MAX_NODES:
        rule = f"a fabric must have at most {MAX_NODES} nodes, switches included"
        raise InvalidInput(rule, topology.node_count, "take a smaller network")
    cables = _cables(topology, link_mbps, options or LinkOptions())
    return FabricPlan(name, topology.compute_count, cables, next_hops(topology))


def require_name(name: str) -> None:
    """Raise InvalidInput unless `name` can be part of the names of namespaces and hosts."""
    if _NAME.fullmatch(name) is None:
        rule = "the name of a fabric must be 1 to 24 letters, digits and dashes in between"
        raise InvalidInput(rule, repr(name), "choose a name such as ring-a")


def namespace_name(fabric: str, node: int) -> str:
    """Return the name of a node's namespace, which is also its host name."""
    return f"chorale-{fabric}-{node}"


def rank_address(rank: int) -> str:
    """Return the IP address of `rank`. Fabrics do not see each other, so all use the same."""
    return str(_FIRST_ADDRESS + rank)


def device_name(peer: int) -> str:
    """Return the name of a node's device on the cable to its neighbour `peer`."""
    return f"to{peer}"


def _cables(topology: Topology, link_mbps: Fraction, options: LinkOptions) -> tuple[Cable, ...]:
    rates = _rates(topology, link_mbps)
    overrides = {override.arc: override for override in options.overrides}
    for arc in overrides:
        if arc not in rates:
            rule = "an override must be for a link of the topology"
            raise InvalidInput(rule, f"{arc[0]}-{arc[1]}", "see the links with `chorale topology show SPEC --json`")
    rates |= {arc: override.mbps * 10**6 for arc, override in overrides.items() if override.mbps is not None}
    for rate in rates.values():
        _require_rate(rate)
    pairs = sorted({(min(pair), max(pair)) for pair in rates})
    return tuple(_cable(pair, rates, overrides, options) for pair in pairs)


def _rates(topology: Topology, link_mbps: Fraction) -> dict[tuple[int, int], Fraction]:
    """Return the bits per second from node to node, parallel links together."""
    full = Fraction(1) if topology.bandwidth_unit == "link" else max(topology.links.bandwidths)
    rates: dict[tuple[int, int], Fraction] = {}
    for link in topology.links:
        if link.src != link.dst:
            bits_per_s = link_mbps * 10**6 * link.bandwidth / full
            rates[link.src, link.dst] = rates.get((link.src, link.dst), Fraction(0)) + bits_per_s
    return rates


def _cable(
    pair: tuple[int, int],
    rates: Mapping[tuple[int, int], Fraction],
    overrides: Mapping[tuple[int, int], LinkOverride],
    options: LinkOptions,
) -> Cable:
    # What goes back against a link of one direction is late and lost like what goes along it.
    forward, back = (
        overrides.get(arc if arc in rates else arc[::-1], LinkOverride(*arc)) for arc in (pair, pair[::-1])
    )
    return Cable(
        pair,
        (int(rates.get(pair, 0)), int(rates.get(pair[::-1], 0))),
        (forward.latency_or(options.latency_us), back.latency_or(options.latency_us)),
        (forward.loss_or(options.loss), back.loss_or(options.loss)),
    )


def _require_rate(bits_per_s: Fraction) -> None:
    if not _SLOWEST_BITS_PER_S <= bits_per_s <= _FASTEST_BITS_PER_S:
        rule = "every link of a fabric must have between 0.1 and 100000 Mbit/s"
        raise InvalidInput(rule, f"{float(bits_per_s / 10**6):g} Mbit/s", "choose another --link-mbps, such as 50")
