"""The alpha-beta model of a network in whole ticks, so that a simulation is exact."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from synth.errors import InvalidInput
from synth.identity import parse_rational
from synth.topology.topology import Topology

_UNIT_BITS_PER_S = {"GB/s": 8 * 10**9, "Gbit/s": 10**9}


@dataclass(frozen=True, slots=True)
class LinkModel:
    """What a message costs on a link of any topology.

    alpha_s:        seconds that a message occupies a link besides its bytes
    link_latency_s: seconds until what enters a link comes out, added to the topology's own latencies
    link_gbps:      Gbit/s of a link of bandwidth 1, needed where the unit is links and ignored elsewhere
    """

    alpha_s: Fraction = Fraction(0)
    link_latency_s: Fraction = Fraction(0)
    link_gbps: Fraction | None = None

    @staticmethod
    def of(
        alpha_us: float | str = 0, link_latency_us: float | str = 0, link_gbps: float | str | Fraction | None = None
    ) -> LinkModel:
        """Return the model with these microseconds and Gbit/s, taken exactly as they are written."""
        alpha = _at_least_zero(alpha_us, "alpha (microseconds)") / 10**6
        latency = _at_least_zero(link_latency_us, "the link latency (microseconds)") / 10**6
        if link_gbps is None:
            return LinkModel(alpha, latency)
        rate = parse_rational(link_gbps, "the link rate (Gbit/s)")
        if rate <= 0:
            raise InvalidInput("a link rate must be above zero", link_gbps, "choose a rate such as 100")
        return LinkModel(alpha, latency, rate)

    def seconds_per_byte(self, topology: Topology) -> list[Fraction]:
        """Return the pace of every link; InvalidInput if the rate of a unit-capacity link is not known."""
        if topology.bandwidth_unit == "link" and self.link_gbps is None:
            rule = "a topology with links of unit capacity needs a link rate"
            raise InvalidInput(rule, topology.spec, "say how fast a link is")
        unit = _UNIT_BITS_PER_S.get(topology.bandwidth_unit) or (self.link_gbps or 0) * 10**9
        table = [8 / (bandwidth * unit) for bandwidth in topology.links.bandwidths]
        return [table[index] for index in topology.links.bandwidth_class.tolist()]

    def latencies_s(self, topology: Topology) -> list[Fraction]:
        """Return the seconds between the two ends of every link."""
        table = [latency + self.link_latency_s for latency in topology.links.latencies_s]
        return [table[index] for index in topology.links.latency_class.tolist()]


@dataclass(frozen=True, slots=True)
class Ticks:
    """The model for one topology and chunk size in whole ticks: c chunks occupy a link for alpha + c * chunk."""

    per_second: int
    alpha: int
    chunk: list[int]
    latency: list[int]

    @staticmethod
    def of(model: LinkModel, topology: Topology, chunk_bytes: int) -> Ticks:
        """Return the smallest ticks in which every duration is whole."""
        chunk_s = [pace * chunk_bytes for pace in model.seconds_per_byte(topology)]
        latency_s = model.latencies_s(topology)
        durations = {model.alpha_s, *chunk_s, *latency_s}
        per_second = math.lcm(*(duration.denominator for duration in durations))
        return Ticks(
            per_second,
            int(model.alpha_s * per_second),
            [int(seconds * per_second) for seconds in chunk_s],
            [int(seconds * per_second) for seconds in latency_s],
        )


def _at_least_zero(value: float | str, what: str) -> Fraction:
    number = parse_rational(value, what)
    if number < 0:
        raise InvalidInput(f"{what} must not be negative", value, "use 0 or more")
    return number
