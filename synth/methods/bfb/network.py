"""The network of the BFB kernels: in-links in rows, integer capacities, and link latencies in ticks.

A tick and the delay of every link follow from the latencies and the size of the vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.distinct import distinct
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.bfb.balance_solver import Problems
from chorale.synth.topology.distance import distances_to, hops_between_all
from chorale.synth.topology.topology import Topology, bytes_per_second

MAX_TIMED_CHUNKS = 64
"""Largest number of chunks per shard that must do where latencies differ; more are chosen only where they pay."""


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


MAX_PAIRS = 2**29
"""Distances take two bytes per pair of nodes: 1 GiB."""
MAX_CHUNKS = 2**15
MAX_HOPS = 2**16 - 2


@dataclass(frozen=True, slots=True, eq=False)
class BfbNetwork:
    """In-links of node u: `tails[offsets[u]:offsets[u + 1]]`, numbered as in the topology (sorted by target).

    capacities: int64 per link; bandwidth = capacity * unit, with the largest unit that keeps them integers.
    delays:     int64 per link: ticks until the first byte arrives, 0 throughout where there is no clock
    latency_ticks: what a tick is, where latencies count; else None, and a tick is what a shard takes at capacity 1
    rows:       None for a whole network. Else only the first `nodes` nodes are there to be solved: `rows` holds the
                hop counts from every shard to each of them, then to other nodes that `tails` names by row.
    key:        names the network among all others
    """

    key: str
    offsets: NDArray[np.int64]
    tails: NDArray[np.int32]
    capacities: NDArray[np.int64]
    delays: NDArray[np.int64]
    unit: Fraction
    latency_ticks: LatencyTicks | None = None
    rows: NDArray[np.uint16] | None = None

    @property
    def nodes(self) -> int:
        return len(self.offsets) - 1

    @property
    def shards(self) -> int:
        return self.nodes if self.rows is None else self.rows.shape[1]

    @property
    def words(self) -> int:
        """How many 64-bit words a set of in-links of one node takes."""
        return (int(np.diff(self.offsets).max()) + 63) // 64

    @property
    def has_delays(self) -> bool:
        return bool(np.any(self.delays))

    @property
    def is_homogeneous(self) -> bool:
        return not self.has_delays and bool(np.all(self.capacities == 1))

    @property
    def grain(self) -> int:
        return 1 if self.latency_ticks is None else self.latency_ticks.grain

    def step_time(self, ticks: Fraction, chunks: int) -> Fraction:
        """Return the time of a step of `ticks` of a chunk: in seconds by the clock, else in chunks per bandwidth."""
        return ticks / self.unit if self.latency_ticks is None else self.latency_ticks.seconds(ticks, chunks)

    def allows(self, chunks: int) -> bool:
        """Whether times with so many chunks per shard stay within 64 bits."""
        try:
            self.require_magnitude(chunks)
        except InvalidInput:
            return False
        return True

    def require_magnitude(self, chunks: int) -> None:
        """Raise InvalidInput unless times with so many chunks per shard stay within 64 bits."""
        if self.latency_ticks is not None:
            inwards = np.add.reduceat(self.capacities, self.offsets[:-1])
            require_magnitude(self.latency_ticks, self.shards, int(self.delays.max()), int(inwards.max()), chunks)


def network_of(topology: Topology, size_bytes: int | None = None, every_pair: bool = True) -> BfbNetwork:
    """Return the kernels' view of `topology`, after checking that breadth-first broadcast applies to it.

    With `size_bytes`, the bytes of the whole vector, latencies count. every_pair: whether hop counts between all nodes
    will be asked for, which large networks have no room for.
    """
    _require_direct(topology)
    nodes = topology.compute_count
    if every_pair and nodes * nodes > MAX_PAIRS:
        gib = f"{2 * nodes * nodes / 2**30:.1f} GiB"
        rule = "bfb keeps a table of hop counts of at most 1 GiB"
        way_out = f"use at most {int(MAX_PAIRS**0.5)} nodes, or a topology with known symmetries such as a torus"
        raise InvalidInput(rule, f"{nodes} nodes, which need {gib}", way_out)
    capacities, unit = _capacities(topology)
    delays, clock = _timing(topology, size_bytes, unit)
    offsets = topology.links.incoming_offsets(nodes)
    key = f"{topology.id} at {size_bytes}"
    return BfbNetwork(key, offsets, topology.links.src.copy(), capacities, delays, unit, clock)


def network_of_rank_0(topology: Topology, size_bytes: int | None = None) -> BfbNetwork:
    """Return the part of `topology` that decides what rank 0 receives: its in-links, and hops to it and their tails.

    Links of rank 0 keep their ids, because links are sorted by target. O(degree * links) time.
    """
    _require_direct(topology)
    capacities, unit = _capacities(topology)
    delays, clock = _timing(topology, size_bytes, unit)
    degree = int(np.searchsorted(topology.links.dst, 1))
    hops = distances_to(topology, np.concatenate([[0], topology.links.src[:degree]]))
    if int(hops.max()) >= MAX_HOPS:
        raise InvalidInput(f"bfb counts up to {MAX_HOPS} hops", int(hops.max()), "use a smaller topology")
    offsets = np.array([0, degree], dtype=np.int64)
    tails = np.arange(1, degree + 1, dtype=np.int32)
    rows = np.ascontiguousarray(hops, dtype=np.uint16)
    key = f"rank 0 of {topology.id} at {size_bytes}"
    return BfbNetwork(key, offsets, tails, capacities[:degree].copy(), delays[:degree].copy(), unit, clock, rows)


def _require_direct(topology: Topology) -> None:
    if topology.switch_count:
        rule = "bfb needs a direct-connect topology"
        raise InvalidInput(
            rule, f"{topology.spec} with {topology.switch_count} switches", "use a topology without switches"
        )


def _capacities(topology: Topology) -> tuple[NDArray[np.int64], Fraction]:
    """Return (capacity per link, their unit)."""
    integer, scale = topology.links.integer_bandwidths()
    common = reduce(gcd, (int(value) for value in distinct(integer)))
    capacities = integer // common
    _check_magnitude(topology.compute_count, capacities)
    return capacities, Fraction(common, scale)


def _timing(
    topology: Topology, size_bytes: int | None, unit: Fraction
) -> tuple[NDArray[np.int64], LatencyTicks | None]:
    if size_bytes is None:
        return np.zeros(len(topology.links), dtype=np.int64), None
    return delays_in_ticks(topology, size_bytes, unit)


def _check_magnitude(nodes: int, capacities: NDArray[np.int64]) -> None:
    largest = int(capacities.max()) * nodes * MAX_CHUNKS * int(capacities.max())
    if largest >= 2**62:
        rule = "bandwidths must have a common unit of which every link is a modest multiple (64-bit sums)"
        way_out = "round the bandwidths to fewer digits"
        raise InvalidInput(rule, f"a largest multiple of {int(capacities.max())} at {nodes} nodes", way_out)


_memory: dict[str, tuple[Problems, int]] = {}


def problems_of(network: BfbNetwork) -> Problems:
    """Return the problems of `network`; the last ones are kept, since many tasks share the table of hop counts."""
    return _prepared(network)[0]


def steps_of(network: BfbNetwork) -> int:
    """Return how many steps the problems of `network` have: the largest hop count."""
    return _prepared(network)[1]


def _prepared(network: BfbNetwork) -> tuple[Problems, int]:
    if network.key not in _memory:
        _memory.clear()
        # Arrays that come from another process may be read-only, for which the kernels have no code.
        offsets, tails = network.offsets.copy(), network.tails.copy()
        rows = hops_between_all(offsets, tails) if network.rows is None else network.rows.copy()
        capacities, delays = network.capacities.copy(), network.delays.copy()
        problems = Problems(offsets, tails, capacities, delays, network.grain, rows, network.words)
        _memory[network.key] = problems, int(rows.max())
    return _memory[network.key]
