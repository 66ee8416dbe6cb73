"""Groups on boxes with rails in closed form: every root's data take a path through all members, box after box.

A path walks all members of a box, crosses to the next one over the rail of the last, and goes on from there. Paths of
different roots begin at different members, so that all NICs and lanes carry alike. Where NICs or lanes limit everywhere
at once, prices on all of them prove that nothing is faster.

Ways to move what groups have, shares of them, and what these load in whole chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.traffic.fabric import RailFabric, rail_fabric
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


_CLOSE = Fraction(1, 100)


def pack_over_rails(topology: Topology, groups: tuple[Group, ...]) -> GroupPacking | None:
    """Return paths for all groups if `topology` is boxes with rails and they are within 1 % of the bound, else None."""
    fabric = rail_fabric(topology)
    if fabric is None or not all(_is_even(fabric, group) for group in groups):
        return None
    commodities = commodities_of(groups)
    ways = tuple(_ways(fabric, groups[commodity.group], commodity) for commodity in commodities)
    shares = tuple(np.full(len(each), 1 / len(each)) for each in ways)
    packing = GroupPacking(
        groups, commodities, ways, shares, np.zeros(len(topology.links), dtype=np.int64), Fraction(0)
    )
    time = time_in_chunks(topology, packing, 1)
    for prices in _prices(fabric):
        lower = proven_time(topology, groups, prices.tolist())
        if time <= lower * (1 + _CLOSE):
            return GroupPacking(groups, commodities, ways, shares, prices, lower)
    return None


def _is_even(fabric: RailFabric, group: Group) -> bool:
    """Whether the members are at the same places of each of their boxes."""
    places: dict[int, list[int]] = {}
    for rank in group.ranks:
        places.setdefault(int(fabric.box[rank]), []).append(int(fabric.place[rank]))
    first, *others = places.values()
    return all(each == first for each in others)


def _prices(fabric: RailFabric) -> list[NDArray[np.int64]]:
    """Return prices on all NICs, on all lanes, and on both, into ranks."""
    nics, lanes = (np.zeros(len(fabric.topology.links), dtype=np.int64) for _ in range(2))
    if fabric.boxes > 1:
        nics[fabric.narrowest[1]] = 1
    lanes[fabric.lane_links[1] if fabric.has_switch else fabric.lane_links[fabric.lanes > 0]] = 1
    return [*([nics] if fabric.boxes > 1 else []), lanes, lanes + nics]


def _ways(fabric: RailFabric, group: Group, commodity: Commodity) -> tuple[Routing, ...]:
    name = group.collective.name
    if name == CollectiveName.ALLTOALL:
        sender, receiver = fabric.usual["direct"]
        one = group.ranks[commodity.root]
        edges = [
            Edge(0, commodity.root, place, fabric.path(one, other, int(sender[one, other]), int(receiver[one, other])),
                 target=place)
            for place, other in enumerate(group.ranks)
            if other != one
        ]  # fmt: skip
        return (Routing(tuple(edges)),)
    if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        return (Routing(tuple(_outward(fabric, group, _order(fabric, group, commodity.root), 0))),)
    if name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE):
        return (Routing(tuple(_inward(fabric, group, _order(fabric, group, commodity.root)))),)
    orders = [_order(fabric, group, root) for root in range(len(group.ranks))]
    after = len(group.ranks) - 1
    return tuple(Routing((*_inward(fabric, group, order), *_outward(fabric, group, order, after))) for order in orders)


def _order(fabric: RailFabric, group: Group, root: int) -> list[int]:
    """Return the members, by place in the group, in the order of the path from `root`."""
    boxes = sorted({int(fabric.box[rank]) for rank in group.ranks})
    width = len(group.ranks) // len(boxes)
    number = {(int(fabric.box[rank]), place % width): place for place, rank in enumerate(_by_box(fabric, group))}
    members = _by_box(fabric, group)
    at = members.index(group.ranks[root])
    first_box, start = divmod(at, width)
    order = []
    for turn in range(len(boxes)):
        box = boxes[(first_box + turn) % len(boxes)]
        order += [number[box, (start + step) % width] for step in range(width)]
        start = (start - 1) % width
    return [group.ranks.index(members[place]) for place in order]


def _by_box(fabric: RailFabric, group: Group) -> list[int]:
    return sorted(group.ranks, key=lambda rank: (int(fabric.box[rank]), int(fabric.place[rank])))


def _outward(fabric: RailFabric, group: Group, order: Sequence[int], first: int) -> list[Edge]:
    return [
        Edge(first + step, one, other, _path(fabric, group.ranks[one], group.ranks[other]))
        for step, (one, other) in enumerate(pairwise(order))
    ]


def _inward(fabric: RailFabric, group: Group, order: Sequence[int]) -> list[Edge]:
    back = list(reversed(order))
    return [
        Edge(step, one, other, _path(fabric, group.ranks[one], group.ranks[other]), reduces=True)
        for step, (one, other) in enumerate(pairwise(back))
    ]


def _path(fabric: RailFabric, one: int, other: int) -> tuple[int, ...]:
    return fabric.lane(one, other) if fabric.box[one] == fabric.box[other] else fabric.path(one, other, one, other)
