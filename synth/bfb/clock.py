"""Link latencies against a size of the vector: what a tick is, and which delay every link has."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.units import bytes_per_second

MAX_TIMED_CHUNKS = 64
"""Largest number of chunks per shard that is chosen where latencies differ."""


@dataclass(frozen=True, slots=True)
class LatencyTicks:
    """What times mean for vectors of `size_bytes`.

    shard_s: seconds that a shard takes on a link of capacity 1, which are `grain` ticks
    first_s: the smallest latency of any link: every step takes it, and delays count from it
    """

    size_bytes: int
    shard_s: Fraction
    grain: int
    first_s: Fraction

    def seconds(self, ticks: Fraction, chunks: int) -> Fraction:
        """Return how long a step takes that ends after `ticks` ticks of a chunk."""
        return self.first_s + ticks / self.grain * self.shard_s / chunks


def delays_in_ticks(topology: Topology, size_bytes: int, unit: Fraction) -> tuple[NDArray[np.int64], LatencyTicks]:
    """Return the delay of every link in ticks, and the clock; a link of capacity 1 has bandwidth `unit`.

    Ticks are as long as they can be with every delay a whole number. Exact. Raises InvalidInput where bandwidths are
    not in bytes and seconds, and where delays have no common unit within 64 bits.
    """
    if size_bytes < 1:
        raise InvalidInput("a size must be at least 1 byte", size_bytes, "give the size of the whole vector")
    shard_s = Fraction(size_bytes, topology.compute_count) / (unit * bytes_per_second(topology))
    first_s = min(topology.links.latencies_s)
    shards = [(latency_s - first_s) / shard_s for latency_s in topology.links.latencies_s]
    grain = lcm(*(delay.denominator for delay in shards))
    table = [int(delay * grain) for delay in shards]
    clock = LatencyTicks(size_bytes, shard_s, grain, first_s)
    require_magnitude(clock, topology.compute_count, max(table), 1)
    return np.array(table, dtype=np.int64)[topology.links.latency_class], clock


def require_magnitude(
    clock: LatencyTicks, shards: int, delay: int, capacity: int, chunks: int = MAX_TIMED_CHUNKS
) -> None:
    """Raise InvalidInput unless times stay within 64 bits for delays up to `delay` and nodes of `capacity` inwards.

    Times are fractions of (shards * grain + capacity * delay) * chunks over capacity, and compared crosswise.
    """
    if (shards * clock.grain + capacity * delay) * capacity * chunks < 2**62:
        return
    rule = "(shards * ticks per shard + bandwidth into a node * largest delay) * bandwidth * chunks must be below 2^62"
    value = f"{shards} shards of {clock.grain} ticks, delays up to {delay}, bandwidth {capacity}, {chunks} chunks"
    way_out = "round latencies and bandwidths to fewer digits, choose a size such as 1MiB, or fewer chunks"
    raise InvalidInput(rule, value, way_out)
