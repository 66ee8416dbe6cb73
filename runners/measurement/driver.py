"""Checks measured times against what the links allow, and computes confidence intervals for medians."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from chorale.runners.api.base import FailureKind, Measurement, Outcome, RunFailure, RunRequest
from chorale.runners.api.config import RunnerConfig
from chorale.runners.api.units import format_size, format_us, full_bandwidth
from chorale.synth.bounds.lower_bound import in_network_bound, lower_bound
from chorale.synth.collective import Collective
from chorale.synth.errors import CheckFailed
from chorale.synth.programs.memory import collective_of_ranks
from chorale.synth.simulation.simulate import NetworkModel
from chorale.synth.topology.topology import Topology

CONFIDENCE = 0.95
MOST_EFFICIENCY = 1.01
"""Highest credible efficiency of a measurement. It exceeds 1 to allow for errors between the clocks of processes."""


@dataclass(frozen=True, slots=True)
class MedianInterval:
    """A sample median, and bounds that enclose the true median with a probability of at least `confidence`."""

    median: float
    low: float
    high: float
    confidence: float
    samples: int


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> MedianInterval:
    """Return the median's exact binomial confidence interval, which lies between two order statistics. O(n log n).

    With too few samples for `confidence`, the interval is their complete range, and its confidence is 1 - 2 / 2^n.

    samples: at least one positive value; values are independent and have any distribution
    """
    median, count = float(np.median(samples)), len(samples)
    reachable = 1 - 2.0 ** (1 - count)
    if reachable < confidence:
        return MedianInterval(median, min(samples), max(samples), reachable, count)
    below, ordered = samples_below(count, confidence), sorted(samples)
    return MedianInterval(median, float(ordered[below]), float(ordered[-1 - below]), confidence, count)


@lru_cache(maxsize=256)
def samples_below(count: int, confidence: float) -> int:
    """Return how many of `count` sorted samples lie outside the confidence interval of their median, at each end.

    The result is the largest k such that a fair coin shows at most k heads in `count` throws with a probability below
    (1 - `confidence`) / 2, or 0 if there is no such k (Conover, Practical Nonparametric Statistics, 1999, 3.2).
    It is computed exactly, with integers.
    """
    limit = Fraction((1 - confidence) / 2) * 2**count
    throws, heads = 1, 0  # throws: number of sequences of `count` throws with at most `heads` heads
    while throws < limit:
        heads += 1
        throws += math.comb(count, heads)
    return max(heads - 1, 0)  # 0: the interval from the smallest to the largest sample reaches `confidence` exactly


def ratio_interval(
    times_s: Sequence[float], reference_s: Sequence[float], confidence: float = CONFIDENCE
) -> MedianInterval:
    """Return the median of the ratios time / reference time, with its confidence interval.

    The n-th time and the n-th reference time were measured in direct succession. A load on the machine therefore slows
    both and hardly changes their ratio. Raises CheckFailed if a reference time is 0.
    """
    if min(reference_s) <= 0:
        rule = "the reference took {}, so nothing can be compared with it"
        raise CheckFailed(rule, f"{min(reference_s)} s", "choose another reference")
    ratios = [time / reference for time, reference in zip(times_s, reference_s, strict=True)]
    return median_interval(ratios, confidence)


@dataclass(frozen=True, slots=True)
class LinkLimit:
    """A lower bound for the time of any schedule of a collective, in seconds per byte of the vector.

    It comes from a proven bound for the links. If the network has switches that reduce or multicast data, the bound
    takes them into account. It does not include latencies or headers.
    """

    seconds_per_byte: float

    def least_s(self, size_bytes: int) -> float:
        return self.seconds_per_byte * size_bytes

    def efficiency(self, time_s: float, size_bytes: int) -> float:
        """Return the limit's time divided by `time_s`: 1 means as fast as the links allow."""
        return self.least_s(size_bytes) / time_s


def link_limit(topology: Topology, collective: Collective, environment: Mapping[str, Any]) -> LinkLimit | None:
    """Return the limit that the links impose on `collective`; `environment` contains the links' rate.

    Returns None if the rate is unknown, and for custom collectives, which have no bound.
    """
    network = None if collective.custom else model_of_run(topology, environment.get("link_mbps"))
    return None if network is None else _limit(topology, collective, network)


@lru_cache(maxsize=64)
def _limit(topology: Topology, collective: Collective, network: NetworkModel) -> LinkLimit:
    bound = in_network_bound(topology, collective) or lower_bound(topology, collective)
    return LinkLimit(float(bound.value / network.unit_bytes_per_s(topology)))


def model_of_run(topology: Topology, link_mbps: Any) -> NetworkModel | None:
    """Return the network model whose `full_bandwidth` is `link_mbps` Mbit/s; None if `link_mbps` is not a number."""
    if not isinstance(link_mbps, (int, float, Fraction, str)):
        return None
    rate_gbps = Fraction(str(link_mbps)) / 1000
    if topology.bandwidth_unit == "link":
        return NetworkModel.of(link_gbps=rate_gbps)
    full = NetworkModel().unit_bytes_per_s(topology) * full_bandwidth(topology)
    return replace(NetworkModel(), efficiency=rate_gbps * 10**9 / 8 / full)


def believable(request: RunRequest, outcome: Outcome) -> Outcome:
    """Return `outcome`, or a failure if a median is faster than the links allow."""
    if isinstance(outcome, RunFailure) or not request.programs:
        return outcome
    collective = collective_of_ranks(next(iter(request.programs.values())))
    limit = link_limit(request.topology, collective, outcome.environment)
    if limit is None:
        return outcome
    for name, size in ((name, size) for name, sizes in outcome.results.items() for size in sizes):
        if limit.efficiency(size.median_s, size.size_bytes) > MOST_EFFICIENCY:
            least, rate = format_us(limit.least_s(size.size_bytes)), outcome.environment["link_mbps"]
            message = (
                f"{name} took {format_us(size.median_s)} for {format_size(size.size_bytes)}, less than the {least} "
                f"that links of {rate} Mbit/s allow: they are faster than stated, or the clock is wrong"
            )
            return RunFailure(FailureKind.IMPOSSIBLE, message, environment=outcome.environment)
    return outcome


def measure_on(config: RunnerConfig, home: Path, request: RunRequest) -> Measurement:
    """Measure `request` on a new runner, which is then closed. Raises CheckFailed if nothing was measured."""
    with closing(config.create(home)) as running:
        outcome = running.submit(request)
    if isinstance(outcome, RunFailure):
        rule = f"the {config.name} runner must measure ({outcome.kind})"
        raise CheckFailed(rule, outcome.message, "see `chorale doctor`")
    return outcome
