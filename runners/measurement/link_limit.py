"""What links allow: the least time of a collective on links of a known rate. What is faster was not measured right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.units import format_size, format_us
from chorale.synth.bounds.in_network import in_network_bound
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import Collective
from chorale.synth.programs.switch_processes import collective_of_ranks
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.topology import Topology

MOST_EFFICIENCY = 1.01
"""Of a measurement that is believed: clocks of different processes are compared."""


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """The seconds that a collective takes for each byte of its vector at least, whatever its schedule.

    From a proven bound of the bandwidth that all links together have, with switches that add and multicast where the
    network has such; latencies and headers come on top of it.
    """

    seconds_per_byte: float

    def least_s(self, size_bytes: int) -> float:
        return self.seconds_per_byte * size_bytes

    def efficiency(self, time_s: float, size_bytes: int) -> float:
        """Return which part of what links allow was reached: 1 at the limit."""
        return self.least_s(size_bytes) / time_s


def link_limit(topology: Topology, collective: Collective, environment: Mapping[str, Any]) -> LinkLimit | None:
    """Return the limit for what ran in `environment`.

    None where the rate of the links is not known, and for collectives of one's own, which have no bound.
    """
    network = None if collective.custom else model_of_run(topology, environment.get("link_mbps"))
    return None if network is None else _limit(topology, collective, network)


@lru_cache(maxsize=64)
def _limit(topology: Topology, collective: Collective, network: NetworkModel) -> LinkLimit:
    bound = in_network_bound(topology, collective) or lower_bound(topology, collective)
    return LinkLimit(float(bound.value / network.unit_bytes_per_s(topology)))


def model_of_run(topology: Topology, link_mbps: Any) -> NetworkModel | None:
    """Return links of that rate: of bandwidth 1, on fabrics in GB/s of the fastest; None where it is not known."""
    if not isinstance(link_mbps, (int, float, Fraction, str)):
        return None
    rate_gbps = Fraction(str(link_mbps)) / 1000
    if topology.bandwidth_unit == "link":
        return NetworkModel.of(link_gbps=rate_gbps)
    full = NetworkModel().unit_bytes_per_s(topology) * max(topology.links.bandwidths)
    return replace(NetworkModel(), efficiency=rate_gbps * 10**9 / 8 / full)


def believable(request: RunRequest, outcome: Outcome) -> Outcome:
    """Return `outcome`, or a failure where a median is below what the links allow."""
    if isinstance(outcome, RunFailure) or not request.programs:
        return outcome
    collective = collective_of_ranks(next(iter(request.programs.values())))
    limit = link_limit(request.topology, collective, outcome.environment)
    fault = None if limit is None else _too_fast(outcome, limit)
    return outcome if fault is None else RunFailure(FailureKind.IMPOSSIBLE, fault, environment=outcome.environment)


def _too_fast(measurement: Measurement, limit: LinkLimit) -> str | None:
    for name, sizes in measurement.results.items():
        for size in sizes:
            if limit.efficiency(size.median_s, size.size_bytes) > MOST_EFFICIENCY:
                least, rate = format_us(limit.least_s(size.size_bytes)), measurement.environment["link_mbps"]
                return (
                    f"{name} took {format_us(size.median_s)} for {format_size(size.size_bytes)}, less than the {least} "
                    f"that links of {rate} Mbit/s allow: they are faster than stated, or the clock is wrong"
                )
    return None
