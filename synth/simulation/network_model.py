"""Cost of messages on a network: bandwidths come from the topology, latencies and unit rates from the caller."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.errors import InvalidInput
from chorale.synth.identity import parse_rational
from chorale.synth.topology.topology import Topology

LINK_LATENCY_US, HOP_US = "0.1", "0.3"
"""Latencies for networks that state none (Swing paper, section 5)."""
_UNIT_BITS_PER_S = {"GB/s": 8 * 10**9, "Gbit/s": 10**9}


@dataclass(frozen=True, slots=True)
class NetworkModel:
    """Exact cost of a message on the links of any topology.

    A message of s bytes over h links, alone on the network, arrives after
    alpha + s / bandwidth of its slowest link + h * (link_latency + hop) + the latencies of the topology.

    alpha_s:        seconds from when a message could start until its first byte leaves
    link_latency_s: seconds for which a bit is on a link, added to the topology's own latencies
    hop_s:          seconds that the node at the end of a link takes to forward a packet
    link_gbps:      Gbit/s of a link of bandwidth 1; needed if the unit is links, else ignored
    efficiency:     fraction of the stated bandwidths that is available to data

    Source: swing paper, section 5 (100 ns a link, 300 ns a hop).
    """

    alpha_s: Fraction = Fraction(0)
    link_latency_s: Fraction = Fraction(0)
    hop_s: Fraction = Fraction(0)
    link_gbps: Fraction | None = None
    efficiency: Fraction = Fraction(1)

    @staticmethod
    def of(
        alpha_us: float | str = 0,
        link_latency_us: float | str = 0,
        hop_us: float | str = 0,
        link_gbps: float | str | Fraction | None = None,
    ) -> NetworkModel:
        """Return the model with these microseconds and Gbit/s, converted exactly."""
        alpha = _at_least_zero(alpha_us, "alpha (microseconds)") / 10**6
        latency = _at_least_zero(link_latency_us, "the link latency (microseconds)") / 10**6
        hop = _at_least_zero(hop_us, "the hop latency (microseconds)") / 10**6
        if link_gbps is None:
            return NetworkModel(alpha, latency, hop)
        rate = parse_rational(link_gbps, "the link rate (Gbit/s)")
        if rate <= 0:
            raise InvalidInput("a link rate must be above zero", link_gbps, "choose a rate such as 100")
        return NetworkModel(alpha, latency, hop, rate)

    @staticmethod
    def usual(topology: Topology, link_gbps: Fraction | None = None) -> NetworkModel:
        """Return the model for predictions without given latencies: those of the network, else the default ones."""
        if any(topology.links.latencies_s):
            return NetworkModel(link_gbps=link_gbps)
        return NetworkModel.of(0, LINK_LATENCY_US, HOP_US, link_gbps)

    @property
    def per_hop_s(self) -> Fraction:
        """Seconds that each link of a route adds to the topology's own latency."""
        return self.link_latency_s + self.hop_s

    def unit_bytes_per_s(self, topology: Topology) -> Fraction:
        """Return the bytes per second of bandwidth 1; raise InvalidInput if links count and have no rate."""
        if topology.bandwidth_unit != "link":
            return self.efficiency * _UNIT_BITS_PER_S[topology.bandwidth_unit] / 8
        if self.link_gbps is None:
            rule = "a topology with links of unit capacity needs a link rate"
            raise InvalidInput(rule, topology.spec, "say how fast a link is, such as --link-gbps 400")
        return self.efficiency * self.link_gbps * 10**9 / 8


def _at_least_zero(value: float | str, what: str) -> Fraction:
    number = parse_rational(value, what)
    if number < 0:
        raise InvalidInput(f"{what} must not be negative", value, "use 0 or more")
    return number
