"""Bounds by trying every set of nodes: slow, obvious, for small networks."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import Collective
from chorale.synth.topology.topology import Topology, transpose


@dataclass(frozen=True)
class AllCuts:
    """Every set T of nodes that holds a rank, as bits of `masks`, for shards that start `weights[rank]` at a rank."""

    topology: Topology
    weights: tuple[int, ...]

    @cached_property
    def masks(self) -> NDArray[np.int64]:
        masks = np.arange(1, 1 << self.topology.node_count)
        return masks[masks & (1 << self.topology.compute_count) - 1 != 0]

    @cached_property
    def outside(self) -> NDArray[np.int64]:
        """Shards that start outside of each set."""
        return sum(weight * (1 - (self.masks >> rank & 1)) for rank, weight in enumerate(self.weights))  # type: ignore[return-value]

    def entering(self, per_link: list[int]) -> NDArray[np.int64]:
        """Sum of `per_link` over the links into each set."""
        total = np.zeros(len(self.masks), dtype=np.int64)
        for amount, src, dst in zip(
            per_link, self.topology.links.src.tolist(), self.topology.links.dst.tolist(), strict=True
        ):
            total += amount * (self.masks >> dst & 1) * (1 - (self.masks >> src & 1))
        return total

    def optimum(self) -> Fraction:
        """Return the largest (shards outside) / (bandwidth into T)."""
        units, scale = self.topology.links.integer_bandwidths()
        pairs = set(zip(self.outside.tolist(), self.entering(units.tolist()).tolist(), strict=True))
        return max(Fraction(outside * scale, bandwidth) for outside, bandwidth in pairs if outside)

    def carries(self, trees_per_bandwidth: Fraction, k: int) -> bool:
        """Whether links of floor(U * b) let k trees per shard into every set."""
        amounts = [int(trees_per_bandwidth * link.bandwidth) for link in self.topology.links]
        return bool(np.all(self.entering(amounts) >= k * self.outside))


def previous_breakpoint(topology: Topology, trees_per_bandwidth: Fraction) -> Fraction:
    """Return the largest m / b below U, m whole and b the bandwidth of a link: floor(U * b) changes nowhere between."""
    return max((-(-trees_per_bandwidth * value // 1) - 1) / value for value in topology.links.bandwidths)


def cuts_of(topology: Topology, collective: Collective) -> AllCuts:
    """Return the cuts that the shards of an operation of one phase cross."""
    ranks = range(topology.compute_count)
    weights = tuple(int(collective.root in (None, rank)) for rank in ranks)
    return AllCuts(transpose(topology) if collective.reduces else topology, weights)


def slowest_cut(topology: Topology, collective: Collective) -> Fraction:
    """Return the time per byte that the narrowest cut of all allows an operation of one phase."""
    return cuts_of(topology, collective).optimum() / (1 if collective.is_rooted else topology.compute_count)
