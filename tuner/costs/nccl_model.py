"""NCCL's allreduce algorithms on a fabric as latency and rate: ring, tree, and those in which switches add.

Rates are what the certified bounds allow, times what measurements leave of line rates. Latencies are those that NCCL
counts in src/graph/tuning.cc (base latencies the same from the first tables with NVLS up to v2.28.7, where they were
looked up): ring Simple 8.4 us and 3.4 us a step on NVLink, 14 us between boxes; tree Simple 8.4 us, 4 us and 14 us; LL
6.6 us, 0.6 us, 2.7 us between boxes and, in trees, 5 us; NVLS 25 us; NVLSTree 25 us, and up and down 20.9 us for each
level of boxes. Of its rates the model takes only that trees reach 92 % of the rate of their channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.bounds.in_network import in_network_bound
from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import ALLREDUCE
from chorale.synth.errors import CheckFailed
from chorale.synth.simulation.network_model import NetworkModel
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology

LINK_SHARE = Fraction(82, 100)
"""Of NVLink's line rate that rings reach: busbw 365 to 370 of 450 on H100 (NVIDIA/nccl#1455, nccl-tests#212)."""
SWITCH_SHARE = Fraction(68, 100)
"""Of the rate that the switch's own copies leave: algbw 273 to 275 of 400 on 8 H100 (the same)."""


@dataclass(frozen=True, slots=True)
class NcclAlgorithm:
    """An algorithm of NCCL's, by the names of its tuner: `bytes_per_s` of the vector, at best."""

    name: str
    protocol: str
    latency_s: float
    bytes_per_s: float

    def seconds(self, size_bytes: int) -> float:
        """Return the time of a vector of `size_bytes`."""
        return self.latency_s + size_bytes / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class PublishedRate:
    """What NCCL's allreduce is published to reach at large sizes: ranks of one box of `spec`, GB/s of the vector."""

    spec: str
    ranks: int
    algorithm: str
    algbw: float
    source: str


PUBLISHED = (
    PublishedRate("h100:1", 8, "ring", 367.5 * 4 / 7, "busbw 365 to 370: NVIDIA/nccl#1455"),
    PublishedRate("h100:1", 8, "nvls", 273.0, "NVIDIA/nccl#1455"),
    PublishedRate("h100:1", 8, "nvls", 275.0, "NVIDIA/nccl-tests#212"),
    PublishedRate("h200:1", 8, "nvls", 475 * 4 / 7, "busbw 475: NVIDIA/nccl-tests#272"),
)


def nccl_algorithms(topology: Topology) -> list[NcclAlgorithm]:
    """Return the algorithms of an allreduce on `topology`: ring and tree, and NVLS, or NVLSTree over several boxes,
    where switches add and multicast and the bound with them is above that of ranks alone."""
    ranks, boxes = topology.compute_count, 1 + max(boxes_of(topology))
    unit = NetworkModel().unit_bytes_per_s(topology)
    alone = unit / lower_bound(topology, ALLREDUCE).value
    between = 2 * (boxes - 1)
    within = 2 * (ranks - 1) - between
    depth = 2 * (ranks // boxes - 1)
    rate = float(alone * LINK_SHARE)
    levels = boxes.bit_length() - 1
    found = [
        NcclAlgorithm("tree", "ll", 6.8e-6 + depth * 0.6e-6 + 2 * levels * 5e-6, rate / 2),
        NcclAlgorithm("ring", "ll", 6.6e-6 + within * 0.6e-6 + between * 2.7e-6, rate / 2),
        NcclAlgorithm("tree", "simple", 8.4e-6 + depth * 4e-6 + 2 * levels * 14e-6, rate * _tree_share(ranks)),
        NcclAlgorithm("ring", "simple", 8.4e-6 + within * 3.4e-6 + between * 14e-6, rate),
    ]
    bound = in_network_bound(topology, ALLREDUCE)
    if bound is not None and unit / bound.value > alone:
        size = ranks // boxes
        copies = Fraction(size, size + 1)  # the own copy of a rank passes the switch, too
        name, latency_s = ("nvls", 25e-6) if boxes == 1 else ("nvls_tree", 25e-6 + 2 * levels * 20.9e-6)
        found.append(NcclAlgorithm(name, "simple", latency_s, float(unit / bound.value * copies * SWITCH_SHARE)))
    return found


def _tree_share(ranks: int) -> float:
    """Return the rate of trees over that of rings: 92 % of half of what a rank sends, of (ranks / (2 ranks - 2))."""
    return 0.92 * (ranks - 1) / ranks


def nccl_choices(topology: Topology, sizes_bytes: Sequence[int]) -> list[tuple[int, NcclAlgorithm]]:
    """Return the fastest algorithm at each size, sizes ascending; CheckFailed without sizes."""
    if not sizes_bytes:
        raise CheckFailed("a table for NCCL needs sizes", "none", "give --sizes")
    algorithms = nccl_algorithms(topology)
    return [(size, min(algorithms, key=lambda each: each.seconds(size))) for size in sorted(sizes_bytes)]
