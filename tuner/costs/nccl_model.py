"""NCCL's allreduce algorithms on a fabric as latency and rate: ring, tree, and those in which switches add.

Rates are those of rings over all network ports, and what the certified bounds allow with switches, times what
measurements leave of line rates. Latencies are those that NCCL counts in src/graph/tuning.cc (base latencies the same
from the first tables with NVLS up to v2.28.7, where they were looked up): ring Simple 8.4 us and 3.4 us a step on
NVLink, 14 us between boxes; tree Simple 8.4 us, 4 us and 14 us; LL 6.6 us, 0.6 us, 2.7 us between boxes and, in trees,
5 us; NVLS 25 us; NVLSTree 25 us, and up and down 20.9 us for each level of boxes. Of its rates the model takes only
that trees reach 92 % of the rate of their channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from chorale.synth.bounds.lower_bound import in_network_bound, lower_bound
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
    """What NCCL's allreduce is published to reach at large sizes: ranks of `spec`, GB/s of the vector."""

    spec: str
    ranks: int
    algorithm: str
    algbw: float
    source: str


PUBLISHED = (
    PublishedRate("h100:1", 8, "ring", 367.5 * 4 / 7, "busbw 365 to 370: NVIDIA/nccl#1455"),
    PublishedRate("without(h100:1;node=7)", 7, "nvls", 270.0, "NVIDIA/nccl#1455"),
    PublishedRate("without(h100:1;node=6;node=7)", 6, "nvls", 265.0, "NVIDIA/nccl#1455"),
    PublishedRate("without(h100:1;node=5;node=6;node=7)", 5, "nvls", 258.0, "NVIDIA/nccl#1455"),
    PublishedRate("without(h100:1;node=4;node=5;node=6;node=7)", 4, "nvls", 367.5 * 4 / 6, "busbw 365 to 370: #1455"),
    PublishedRate("h100:1", 8, "nvls", 273.0, "NVIDIA/nccl#1455"),
    PublishedRate("h100:1", 8, "nvls", 275.0, "NVIDIA/nccl-tests#212"),
    PublishedRate("h200:1", 8, "nvls", 475 * 4 / 7, "busbw 475: NVIDIA/nccl-tests#272"),
    PublishedRate("h100:2", 16, "tree", 330 * 16 / 30, "busbw 330 without NVLS, RoCE: NVIDIA/nccl#1221"),
    PublishedRate("h100:2", 16, "nvls_tree", 430 * 16 / 30, "busbw 430 with NVLS, RoCE: NVIDIA/nccl#1221"),
    PublishedRate("h100:4", 32, "ring", 320 * 32 / 62, "busbw 320 with and without NVLS, RoCE: NVIDIA/nccl#1221"),
)
"""The model was fitted to rings and NVLS on eight GPUs; the others are predictions. Sources name no algorithm over
several boxes: the fastest by the model. On two and three GPUs NVLS is published to reach what rings do, busbw 365 to
370 (nccl issue 1455), far above this model, which is not meant for so few."""


def nccl_algorithms(topology: Topology) -> list[NcclAlgorithm]:
    """Return the algorithms of an allreduce on `topology`: ring and tree, and NVLS, or NVLSTree over several boxes,
    where switches add and multicast and the bound with them is above that of ranks alone."""
    ranks, boxes = topology.compute_count, 1 + max(boxes_of(topology))
    unit = NetworkModel().unit_bytes_per_s(topology)
    alone = unit / lower_bound(topology, ALLREDUCE).value
    between = 2 * (boxes - 1)
    within = 2 * (ranks - 1) - between
    depth = 2 * (ranks // boxes - 1)
    rate = ring_bytes_per_s(topology) * float(LINK_SHARE)
    levels = boxes.bit_length() - 1
    found = [
        NcclAlgorithm("tree", "ll", 6.8e-6 + depth * 0.6e-6 + 2 * levels * 5e-6, rate / 2),
        NcclAlgorithm("ring", "ll", 6.6e-6 + within * 0.6e-6 + between * 2.7e-6, rate / 2),
        NcclAlgorithm("tree", "simple", 8.4e-6 + depth * 4e-6 + 2 * levels * 14e-6, _tree_rate(topology, boxes)),
        NcclAlgorithm("ring", "simple", 8.4e-6 + within * 3.4e-6 + between * 14e-6, rate),
    ]
    bound = in_network_bound(topology, ALLREDUCE)
    if bound is not None and unit / bound.value > alone:
        size = ranks // boxes
        copies = Fraction(size, size + 1)  # the own copy of a rank passes the switch, too
        name, latency_s = ("nvls", 25e-6) if boxes == 1 else ("nvls_tree", 25e-6 + 2 * levels * 20.9e-6)
        found.append(NcclAlgorithm(name, "simple", latency_s, float(unit / bound.value * copies * SWITCH_SHARE)))
    return found


def ring_bytes_per_s(topology: Topology) -> float:
    """Return the rate of an allreduce by rings over all network ports, at line rates and without latencies.

    In a box they reach the bound of ranks alone; over several all of the vector leaves every box, nearly twice.
    """
    unit = NetworkModel().unit_bytes_per_s(topology)
    ranks, boxes = topology.compute_count, boxes_of(topology)
    alone = unit / lower_bound(topology, ALLREDUCE).value
    if not max(boxes):
        return float(alone)
    return float(min(alone, unit * _leaving_a_box(topology, boxes) * Fraction(ranks, 2 * (ranks - 1))))


def _leaving_a_box(topology: Topology, boxes: Sequence[int]) -> Fraction:
    """Return the bandwidth out of the first box, with the switches that have ranks of no other box as neighbours."""
    links, ranks = topology.links, topology.compute_count
    ends = list(zip(links.src.tolist(), links.dst.tolist(), links.bandwidth_class.tolist(), strict=True))
    near: dict[int, set[int]] = {}
    for src, dst, _ in ends:
        if src < ranks <= dst:
            near.setdefault(dst, set()).add(boxes[src])
    inside = {node for node, of in near.items() if of == {0}} | {rank for rank in range(ranks) if boxes[rank] == 0}
    crossing = (width for src, dst, width in ends if src in inside and dst not in inside)
    return sum((links.bandwidths[width] for width in crossing), Fraction(0))


def _tree_rate(topology: Topology, boxes: int) -> float:
    """Return the rate of trees, which send the vector up and down: half of what rings move, and 92 % of that.

    That is the bandwidth inside a box for up to two boxes, as NCCL counts it, between them for more.
    """
    ranks = topology.compute_count
    inside = float(NetworkModel().unit_bytes_per_s(topology) * _widest_link(topology))
    moved = inside if boxes <= 2 else ring_bytes_per_s(topology) * 2 * (ranks - 1) / ranks
    return 0.92 / 2 * moved * float(LINK_SHARE)


def _widest_link(topology: Topology) -> Fraction:
    """Return what a rank has towards the neighbour to which it has most: NVSwitch, in boxes with one."""
    links = topology.links
    bandwidths = [links.bandwidths[index] for index in links.bandwidth_class.tolist()]
    width: dict[int, Fraction] = {}
    for src, dst, bandwidth in zip(links.src.tolist(), links.dst.tolist(), bandwidths, strict=True):
        if src == 0:
            width[dst] = width.get(dst, Fraction(0)) + bandwidth
    return max(width.values())


def nccl_choices(topology: Topology, sizes_bytes: Sequence[int]) -> list[tuple[int, NcclAlgorithm]]:
    """Return the fastest algorithm at each size, sizes ascending; CheckFailed without sizes."""
    if not sizes_bytes:
        raise CheckFailed("a table for NCCL needs sizes", "none", "give --sizes")
    algorithms = nccl_algorithms(topology)
    return [(size, min(algorithms, key=lambda each: each.seconds(size))) for size in sorted(sizes_bytes)]
