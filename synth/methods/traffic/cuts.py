"""Computes bounds from cuts around ranks and boxes: data need at least the time size / bandwidth to cross a cut."""

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.traffic.tokens import TokenRouting
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology


class Region(NamedTuple):
    """A rank or a box, together with the switches that are only linked to this rank or box.

    ranks:     its ranks
    inside:    bool[nodes], whether the node is in the region
    out, into: bandwidth of the links that leave the region and enter it, in the topology's unit
    """

    ranks: tuple[int, ...]
    inside: NDArray[np.bool_]
    out: Fraction
    into: Fraction


class Cut(NamedTuple):
    """A cut around `region`: data need at least `time`, in data / bandwidth, to leave (if `is_out`) or enter it."""

    time: Fraction
    region: Region
    is_out: bool

    @property
    def inside(self) -> NDArray[np.bool_]:
        """bool[nodes]: the sending side of the cut: the region itself or, if data must enter it, all other nodes."""
        return self.region.inside if self.is_out else ~self.region.inside


@lru_cache(maxsize=16)
def regions_of(topology: Topology) -> list[tuple[NDArray[np.int64], list[Region]]]:
    """Return (region index of each rank, regions): first for single ranks, then for boxes if there are several."""
    links, box = topology.links, np.array(boxes_of(topology), dtype=np.int64)
    switches = np.arange(topology.node_count) >= topology.compute_count

    def width(nodes: NDArray[np.bool_]) -> Fraction:
        crossing = links.bandwidth_class[nodes[links.src] & ~nodes[links.dst]]
        return sum((links.bandwidths[number] for number in crossing.tolist()), Fraction(0))

    partitions = []
    for group in (np.arange(len(box)), box) if box.any() else (np.arange(len(box)),):
        regions = []
        for number in range(int(group.max()) + 1):
            ranks = np.flatnonzero(group == number)
            inside, outside = np.zeros((2, topology.node_count), dtype=np.bool_)
            inside[ranks] = True
            outside[links.dst[~inside[links.src]]] = True
            outside[links.src[~inside[links.dst]]] = True
            inside |= switches & ~outside
            regions.append(Region(tuple(ranks.tolist()), inside, width(inside), width(~inside)))
        partitions.append((group, regions))
    return partitions


def cuts_of_amounts(topology: Topology, sent: NDArray[np.int64]) -> list[Cut]:
    """Return the cuts around each rank and each box, with their times for the amounts `sent` (zero on the diagonal)."""
    cuts = []
    source, target = np.nonzero(sent)
    for group, regions in regions_of(topology):
        crossing = group[source] != group[target]
        amounts = sent[source, target][crossing]
        for index, ends in enumerate((source, target)):
            total = np.zeros(len(regions), dtype=np.int64)
            np.add.at(total, group[ends[crossing]], amounts)
            cuts += _cuts(regions, total, is_out=index == 0)
    return cuts


def cuts_of_tokens(topology: Topology, routing: TokenRouting) -> list[Cut]:
    """Return the cuts around each rank and each box. A token counts once per cut, even if it has several targets."""
    shard, cuts = routing.shard, []
    for group, regions in regions_of(topology):
        home, there = group[routing.source], group[routing.targets]
        away = there != home[shard]
        leaves = np.zeros(len(home), dtype=np.bool_)
        leaves[shard[away]] = True
        entering = np.unique((shard * len(regions) + there)[away])
        out, into = np.zeros((2, len(regions)), dtype=np.int64)
        np.add.at(out, home[leaves], routing.amount[leaves])
        np.add.at(into, entering % len(regions), routing.amount[entering // len(regions)])
        cuts += [*_cuts(regions, out, is_out=True), *_cuts(regions, into, is_out=False)]
    return cuts


def _cuts(regions: list[Region], amounts: NDArray[np.int64], is_out: bool) -> list[Cut]:
    pairs = zip(regions, amounts.tolist(), strict=True)
    return [
        Cut(amount / width, region, is_out)
        for region, amount in pairs
        if (width := region.out if is_out else region.into)
    ]
