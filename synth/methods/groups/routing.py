"""Ways to move what groups have, shares of them, and what these load in whole chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.groups.group import Group
from chorale.synth.topology.topology import Topology

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Edge:
    """Members of a group by place in it, the depth of the sender, and the path of links between them.

    target: for whom the data of an all-to-all are, -1 for all;  reduces: whether the receiver adds
    """

    depth: int
    sender: int
    receiver: int
    path: tuple[int, ...]
    reduces: bool = False
    target: int = -1


@dataclass(frozen=True)
class Routing:
    """One way to move a unit of a commodity. levels: steps that its edges are in."""

    edges: tuple[Edge, ...]

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links of all edges, as often as they are crossed."""
        return np.array([link for edge in self.edges for link in edge.path], dtype=np.int64)

    @property
    def levels(self) -> int:
        return 1 + max(edge.depth for edge in self.edges)


@dataclass(frozen=True, slots=True)
class Commodity:
    """group: number of the group;  root: place in it;  amount: what one way moves if it moves all of it."""

    group: int
    root: int
    amount: Fraction


@dataclass(frozen=True, slots=True, eq=False)
class GroupPacking:
    """ways, shares: of every commodity, shares add up to 1;  prices: int64 per link, which prove `lower`, the time."""

    groups: tuple[Group, ...]
    commodities: tuple[Commodity, ...]
    ways: tuple[tuple[Routing, ...], ...]
    shares: tuple[Floats, ...]
    prices: NDArray[np.int64]
    lower: Fraction


def commodities_of(groups: Sequence[Group]) -> tuple[Commodity, ...]:
    """Return a commodity for every root or source of every group."""
    found = []
    for number, group in enumerate(groups):
        root = group.collective.root
        roots = range(group.commodities) if root is None else [root]
        found += [Commodity(number, root, Fraction(group.amount, group.commodities)) for root in roots]
    return tuple(found)


def time_in_chunks(topology: Topology, packing: GroupPacking, chunks: int) -> Fraction:
    totals = [Fraction(0)] * len(topology.links)
    for number, commodity in enumerate(packing.commodities):
        units = units_of(packing, commodity, chunks)
        for way, count in zip(packing.ways[number], counts_of(packing.shares[number], units), strict=True):
            for link in way.links.tolist() if count else ():
                totals[link] += commodity.amount * count / units
    return max(load / link.bandwidth for load, link in zip(totals, topology.links, strict=True))


def units_of(packing: GroupPacking, commodity: Commodity, chunks: int) -> int:
    group = packing.groups[commodity.group]
    return chunks * (len(group.ranks) if group.commodities == 1 else 1)


def counts_of(shares: NDArray[np.float64], units: int) -> list[int]:
    """Return whole units near `shares` of them: the largest remainders are rounded up."""
    exact = shares * units
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: units - int(counts.sum())]] += 1
    result: list[int] = counts.tolist()
    return result
