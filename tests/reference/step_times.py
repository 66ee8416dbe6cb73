"""The least time of a breadth-first broadcast, exactly: every set of shards needs room on the links it may come over.

A shard at distance t from a node comes over a link from a node at distance t - 1 of it. In time x a link with latency
carries (x - latency) * rate, in whole chunks or divided; shards can be dealt out exactly if every set of them has room
on all its links together (Hall). Steps wait for the slowest node. For a few ranks, no switches.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from chorale.synth.topology.topology import Topology


@dataclass(frozen=True)
class Step:
    """links: (latency, shards per unit of time) into a node;  shards: the links that each may come over."""

    links: tuple[tuple[Fraction, Fraction], ...]
    shards: tuple[frozenset[int], ...]

    def carries(self, time: Fraction, chunks: int) -> bool:
        room = [max(Fraction(0), time - late) * rate * chunks // 1 for late, rate in self.links]
        return all(sum(room[link] for link in links) >= count * chunks for count, links in self.crowds())

    def crowds(self) -> list[tuple[int, frozenset[int]]]:
        """Every set of shards as its size and the links of all its shards."""
        sets = (crowd for size in range(1, len(self.shards) + 1) for crowd in combinations(self.shards, size))
        return [(len(crowd), frozenset().union(*crowd)) for crowd in sets]

    def divisible(self) -> Fraction:
        """Room grows with time piece by piece: the first links by latency, all the others unused."""
        return max((self._until(count, links) for count, links in self.crowds()), default=Fraction(0))

    def _until(self, count: int, links: frozenset[int]) -> Fraction:
        by_latency = sorted(self.links[link] for link in links)
        used = [by_latency[:number] for number in range(1, len(by_latency) + 1)]
        zero = Fraction(0)
        return min(
            (count + sum((late * rate for late, rate in some), zero)) / sum((rate for _, rate in some), zero)
            for some in used
        )

    def whole(self, chunks: int) -> Fraction:
        """The least time at which some link has just carried a chunk and all have room."""
        return min((self._at(late, rate * chunks, chunks) for late, rate in self.links), default=Fraction(0))

    def _at(self, late: Fraction, rate: Fraction, chunks: int) -> Fraction:
        low, high = 0, 1
        while not self.carries(late + high / rate, chunks):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self.carries(late + middle / rate, chunks) else (middle, high)
        return late + high / rate


def least_broadcast_time(topology: Topology, chunks: int | None, size_bytes: int | None) -> Fraction:
    return sum(least_step_times(topology, chunks, size_bytes), Fraction(0))


def least_step_times(topology: Topology, chunks: int | None, size_bytes: int | None) -> list[Fraction]:
    """Return for each step seconds at `size_bytes` of links in GB/s, or else the time per byte in 1 / bandwidth.

    chunks: per shard, None for shards that can be divided as finely as one likes.
    """
    ranks, times, step = topology.compute_count, [], 1
    hops = [_hops(topology, rank) for rank in range(ranks)]
    unit = Fraction(ranks) if size_bytes is None else Fraction(10**9 * ranks, size_bytes)
    while step <= max(max(row) for row in hops):
        steps = [_step(topology, hops, node, step, unit, size_bytes is not None) for node in range(ranks)]
        busy = [one for one in steps if one.shards]
        times.append(max(one.divisible() if chunks is None else one.whole(chunks) for one in busy))
        step += 1
    return times


def _step(topology: Topology, hops: list[list[int]], node: int, step: int, unit: Fraction, is_late: bool) -> Step:
    incoming = [link for link in topology.links if link.dst == node and link.src != node]
    links = tuple((link.latency_s if is_late else Fraction(0), link.bandwidth * unit) for link in incoming)
    distant = [shard for shard in range(topology.compute_count) if hops[shard][node] == step]
    at = [frozenset(i for i, link in enumerate(incoming) if hops[shard][link.src] == step - 1) for shard in distant]
    return Step(links, tuple(at))


def _hops(topology: Topology, start: int) -> list[int]:
    hops, border = {start: 0}, [start]
    while border:
        border = sorted({link.dst for link in topology.links if link.src in border} - hops.keys())
        hops |= dict.fromkeys(border, max(hops.values()) + 1)
    return [hops[node] for node in range(topology.node_count)]
