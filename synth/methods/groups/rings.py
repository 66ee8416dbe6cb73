"""Ways to route the data of groups, with a closed form for boxes with rails.

On boxes with rails, the data of every root follow a path through all members: it visits all members of a box, crosses
to the next box over the rail of the last one, and continues there. The paths of different roots start at different
members, so that all NICs and lanes carry the same load. If all NICs, or all lanes, are equally busy and limit the time,
equal prices on them prove that no plan is faster.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.traffic.fabric import RailFabric, rail_fabric
from chorale.synth.topology.topology import Topology

Floats = NDArray[np.float64]
Parents = NDArray[np.int64]
"""A tree over the members of a group, as the index of each member's parent, -1 for the root."""
PathOf = Callable[[int, int], tuple[int, ...]]
"""Function that returns the links of the path from one rank to another, in travel order."""


@dataclass(frozen=True)
class Edge:
    """A transfer between two members of a group. Members are given by their index in the group.

    depth:   step in which the sender sends
    path:    links from sender to receiver
    reduces: whether the receiver adds the data to its own
    target:  member for which the data of an all-to-all are meant, -1 for all members
    """

    depth: int
    sender: int
    receiver: int
    path: tuple[int, ...]
    reduces: bool = False
    target: int = -1


@dataclass(frozen=True)
class Routing:
    """One way to move a unit of a commodity."""

    edges: tuple[Edge, ...]

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links of all edges. A link that several edges cross occurs several times."""
        return np.array([link for edge in self.edges for link in edge.path], dtype=np.int64)


def routing(group: Group, root: int, path: PathOf, down: Parents | None = None, up: Parents | None = None) -> Routing:
    """Return the way of an all-to-all from `root`, or along trees with this root: `up` for sums, `down` for copies.

    All sums come before the copies. Members are given by their index in the group, but `path` is called with ranks.
    """

    def links(sender: int, receiver: int) -> tuple[int, ...]:
        return path(group.ranks[sender], group.ranks[receiver])

    if group.collective.name == CollectiveName.ALLTOALL:
        others = [place for place in range(len(group.ranks)) if place != root]
        return Routing(tuple(Edge(0, root, place, links(root, place), target=place) for place in others))
    edges: list[Edge] = []
    if up is not None:
        depths = _depths(up)
        last = max(depths) - 1
        edges += [
            Edge(last - depths[above], place, above, links(place, above), reduces=True)
            for place, above in enumerate(up.tolist())
            if above >= 0
        ]
    if down is not None:
        depths = _depths(down)
        first = 1 + max((edge.depth for edge in edges), default=-1)
        edges += [
            Edge(first + depths[above], above, place, links(above, place))
            for place, above in enumerate(down.tolist())
            if above >= 0
        ]
    return Routing(tuple(edges))


def _depths(parents: Parents) -> list[int]:
    """Return the number of edges from the root to each node."""
    depths = np.zeros(len(parents), dtype=np.int64)
    above = parents
    while (below := above >= 0).any():
        depths += below
        above = np.where(below, parents[above], -1)
    return list(depths.tolist())


@dataclass(frozen=True, slots=True)
class Commodity:
    """The data of one root or source.

    group:  number of the group
    root:   index of the root or source in the group
    amount: amount of the data
    """

    group: int
    root: int
    amount: Fraction


@dataclass(frozen=True, slots=True, eq=False)
class GroupPacking:
    """A plan for several groups: the ways of every commodity, and their shares, which add up to 1.

    prices: int64[links]: link prices, which prove `lower`
    lower:  lower bound on the time of any plan, in amount / bandwidth
    """

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
    """Return the time that the busiest link needs with `chunks` chunks per shard, in amount / bandwidth."""
    totals = [Fraction(0)] * len(topology.links)
    for number, commodity in enumerate(packing.commodities):
        counts = counts_of(packing, number, chunks)
        for way, count in zip(packing.ways[number], counts, strict=True):
            for link in way.links.tolist() if count else ():
                totals[link] += commodity.amount * count / sum(counts)
    return max(load / link.bandwidth for load, link in zip(totals, topology.links, strict=True))


def counts_of(packing: GroupPacking, number: int, chunks: int) -> list[int]:
    """Return the number of units of each way of commodity `number`: its share, rounded by the largest remainders.

    A unit is a chunk of the shard of a root or pair, or a chunk of any shard if the collective has one commodity.
    """
    group = packing.groups[packing.commodities[number].group]
    units = chunks * (len(group.ranks) if group.commodities == 1 else 1)
    exact = packing.shares[number] * units
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: units - int(counts.sum())]] += 1
    return list(counts.tolist())


_CLOSE = Fraction(1, 100)


def pack_over_rails(topology: Topology, groups: tuple[Group, ...]) -> GroupPacking | None:
    """Return the plan in closed form for all groups, or None if it is not within 1 % of a lower bound.

    Also None unless the network consists of boxes with rails, and each group has members at the same positions in each
    of its boxes.
    """
    fabric = rail_fabric(topology)
    if fabric is None:
        return None
    for group in groups:
        places: dict[int, list[int]] = {}
        for rank in group.ranks:
            places.setdefault(int(fabric.box[rank]), []).append(int(fabric.place[rank]))
        if len(set(map(tuple, places.values()))) > 1:
            return None
    commodities = commodities_of(groups)
    ways = tuple(_ways(fabric, groups[commodity.group], commodity.root) for commodity in commodities)
    shares = tuple(np.full(len(each), 1 / len(each)) for each in ways)
    nics, lanes = np.zeros((2, len(topology.links)), dtype=np.int64)  # prices on all NICs, and on all lanes into ranks
    lanes[fabric.lane_links[1] if fabric.has_switch else fabric.lane_links[fabric.lanes > 0]] = 1
    if fabric.boxes > 1:
        nics[fabric.narrowest[1]] = 1
    time = time_in_chunks(topology, GroupPacking(groups, commodities, ways, shares, nics, Fraction(0)), 1)
    for prices in (nics, lanes, lanes + nics):
        lower = proven_time(topology, groups, prices.tolist())
        if time <= lower * (1 + _CLOSE):
            return GroupPacking(groups, commodities, ways, shares, prices, lower)
    return None


def _ways(fabric: RailFabric, group: Group, root: int) -> tuple[Routing, ...]:
    def path(sender: int, receiver: int) -> tuple[int, ...]:
        if fabric.box[sender] == fabric.box[receiver]:
            return fabric.lane(sender, receiver)
        return fabric.path(sender, receiver, sender, receiver)

    def direct(sender: int, receiver: int) -> tuple[int, ...]:
        return fabric.path(sender, receiver, *(int(side[sender, receiver]) for side in fabric.usual["direct"]))

    name = group.collective.name
    if name == CollectiveName.ALLTOALL:
        return (routing(group, root, direct),)
    if name == CollectiveName.ALLREDUCE:
        trees = [_path_through(fabric, group, start) for start in range(len(group.ranks))]
        return tuple(routing(group, start, path, tree, tree) for start, tree in enumerate(trees))
    tree = _path_through(fabric, group, root)
    if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        return (routing(group, root, path, down=tree),)
    return (routing(group, root, path, up=tree),)


def _path_through(fabric: RailFabric, group: Group, root: int) -> Parents:
    """Return the path from `root` through all members, box after box, as a tree."""
    by_box = sorted(range(len(group.ranks)), key=lambda place: (fabric.box[group.ranks[place]], group.ranks[place]))
    boxes = len({int(fabric.box[rank]) for rank in group.ranks})
    width = len(by_box) // boxes
    first_box, start = divmod(by_box.index(root), width)
    order = []
    for turn in range(boxes):
        box = (first_box + turn) % boxes
        order += [by_box[box * width + (start + step) % width] for step in range(width)]
        start = (start - 1) % width
    parents = np.full(len(order), -1, dtype=np.int64)
    parents[order[1:]] = order[:-1]
    return parents
