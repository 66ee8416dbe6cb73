"""Chooses routes for the data of groups. For boxes with rails, there is a closed form.

On boxes with rails, every root's data follow a path through all members: the path visits all members in a box, crosses
to the next box over the last member's rail, and continues there. The paths of different roots start at different
members, so that all NICs carry the same load, and all lanes (links inside boxes) carry the same load. If all NICs, or
all lanes, limit the time, equal prices for them prove that no plan is faster.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group
from chorale.synth.methods.traffic.fabric import RailFabric, rail_fabric
from chorale.synth.topology.topology import Topology

Floats = NDArray[np.float64]
Parents = NDArray[np.int64]
"""A tree over the members of a group: the index of each member's parent, -1 for the root."""
PathOf = Callable[[int, int], tuple[int, ...]]
"""Function that returns the links of the path from one rank to another, in travel order."""
_CLOSE = Fraction(1, 100)


@dataclass(frozen=True, eq=False)
class Routing:
    """A possible routing of a commodity (the data of a root or source): transfers between the members of a group.

    depth:   for each transfer, the step in which it takes place
    reduces: for each transfer, whether the receiver adds the data to its own
    target:  for each transfer of an all-to-all, the index of the member that should receive the data; otherwise -1
    paths:   for each transfer, the links from sender to receiver
    """

    depth: NDArray[np.int64]
    reduces: NDArray[np.bool_]
    target: NDArray[np.int64]
    paths: tuple[tuple[int, ...], ...]

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links of all transfers. A link that several transfers use occurs several times."""
        return np.fromiter(chain.from_iterable(self.paths), dtype=np.int64)

    @property
    def key(self) -> tuple[object, ...]:
        """A hashable key that is equal for identical routings."""
        return self.paths, self.depth.tobytes(), self.reduces.tobytes()


def routing(group: Group, root: int, path: PathOf, down: Parents | None = None, up: Parents | None = None) -> Routing:
    """Return the routing for the data of `root`: direct messages for an all-to-all, otherwise trees.

    Data are summed along the tree `up`, then copied along the tree `down`. Copies start after all sums. Members are
    identified by their index in the group, but `path` is called with ranks.
    """
    ranks, nothing = group.ranks, np.zeros(0, dtype=np.int64)
    if group.collective.name == CollectiveName.ALLTOALL:
        others = np.delete(np.arange(len(ranks)), root)
        paths = tuple(path(ranks[root], ranks[place]) for place in others.tolist())
        return Routing(np.zeros_like(others), np.zeros(len(others), dtype=np.bool_), others, paths)
    depth, senders, receivers = [nothing], [nothing], [nothing]
    sums = 0
    if up is not None:
        depths, below = _depths(up), np.flatnonzero(up >= 0)
        depth.append(depths.max() - depths[below])
        senders.append(below)
        receivers.append(up[below])
        sums = len(below)
    if down is not None:
        depths, below = _depths(down), np.flatnonzero(down >= 0)
        depth.append(depth[-1].max(initial=-1) + depths[below])
        senders.append(down[below])
        receivers.append(below)
    pairs = zip(np.concatenate(senders).tolist(), np.concatenate(receivers).tolist(), strict=True)
    together = tuple(path(ranks[sender], ranks[receiver]) for sender, receiver in pairs)
    edges = np.arange(len(together))
    return Routing(np.concatenate(depth), edges < sums, np.full_like(edges, -1), together)


def _depths(parents: Parents) -> NDArray[np.int64]:
    """Return int64 per node: its number of edges from the root. Takes log2(depth) rounds."""
    above = np.where(parents < 0, np.arange(len(parents)), parents)
    depths = (parents >= 0).astype(np.int64)
    while (further := depths[above]).any():
        depths, above = depths + further, above[above]
    return depths


@dataclass(frozen=True, slots=True)
class Commodity:
    """The data of one tree root or one all-to-all source, which are routed separately from other data.

    group:  index of the group
    root:   index of the root or source in its group
    amount: size of the data, in the unit of `Group.amount`
    """

    group: int
    root: int
    amount: Fraction


@dataclass(frozen=True, slots=True, eq=False)
class GroupPacking:
    """A plan for several groups.

    ways:   for each of `commodities`, the routings that it uses
    shares: for each commodity, the fraction of its data that takes each of these routings
    prices: int64[links], link prices that prove `lower`
    lower:  lower bound on the time of any plan, in data / bandwidth
    gap:    for a plan in closed form, its time above `lower`, relative to `lower`; None for a plan from a linear
            program
    """

    groups: tuple[Group, ...]
    commodities: tuple[Commodity, ...]
    ways: tuple[tuple[Routing, ...], ...]
    shares: tuple[Floats, ...]
    prices: NDArray[np.int64]
    lower: Fraction
    gap: Fraction | None = None


def commodities_of(groups: Sequence[Group]) -> tuple[Commodity, ...]:
    """Return a commodity for every root or source of every group."""
    found = []
    for number, group in enumerate(groups):
        root = group.collective.root
        roots = range(group.commodities) if root is None else [root]
        found += [Commodity(number, root, Fraction(group.amount, group.commodities)) for root in roots]
    return tuple(found)


class GroupLoads(NamedTuple):
    """Link loads of a group: the load of link i is `links[i]` times `unit`, in the unit of `Group.amount`."""

    unit: Fraction
    links: NDArray[np.int64]


def busiest(topology: Topology, loads: Iterable[GroupLoads]) -> tuple[Fraction, NDArray[np.bool_]]:
    """Return (time that the busiest links need for all `loads`, in data / bandwidth; bool[links]: busiest links)."""
    rows: dict[Fraction, NDArray[np.int64]] = {}
    for unit, links in loads:
        rows[unit] = rows[unit] + links if unit in rows else links
    kinds, kind = np.unique([*rows.values(), topology.links.bandwidth_class], axis=1, return_inverse=True)
    times = [
        sum((unit * load for unit, load in zip(rows, column, strict=True)), Fraction(0))
        / topology.links.bandwidths[last]
        for *column, last in kinds.T.tolist()
    ]
    longest = max(times)
    return longest, np.array([time == longest for time in times])[kind]


def loads_of(topology: Topology, packing: GroupPacking, chunks: int) -> Iterable[GroupLoads]:
    """Yield the link loads of each commodity, with `chunks` chunks per shard."""
    for number, commodity in enumerate(packing.commodities):
        counts, links = counts_of(packing, number, chunks), np.zeros(len(topology.links), dtype=np.int64)
        for way, count in zip(packing.ways[number], counts, strict=True):
            np.add.at(links, way.links, count)
        yield GroupLoads(commodity.amount / sum(counts), links)


def counts_of(packing: GroupPacking, number: int, chunks: int) -> list[int]:
    """Return how many units of commodity `number` use each routing: its share, with the largest remainders rounded up.

    A unit is a chunk. The commodity has the chunks of one shard or, if its group has no other commodity, of all shards.
    """
    group = packing.groups[packing.commodities[number].group]
    units = chunks * (len(group.ranks) if group.commodities == 1 else 1)
    exact = packing.shares[number] * units
    counts = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(counts - exact, kind="stable")
    counts[order[: units - int(counts.sum())]] += 1
    return list(counts.tolist())


def pack_over_rails(topology: Topology, groups: tuple[Group, ...], close: Fraction = _CLOSE) -> GroupPacking | None:
    """Return the best plan in closed form for all groups, or the first plan whose gap is at most `close`.

    Groups use their members' NICs. If these are only some of the boxes' NICs, a plan in which groups use all NICs is
    tried as well. Returns None unless the network consists of boxes with rails, and each group has members at the same
    positions in each of its boxes.
    """
    fabric = rail_fabric(topology)
    if fabric is None or not all(len(_grid(fabric, group)) for group in groups):
        return None
    commodities, nothing = commodities_of(groups), np.zeros(len(topology.links), dtype=np.int64)
    direct = [cache(fabric.direct_path)]
    every = [cache(partial(fabric.path_over, place)) for place in range(fabric.members.shape[1])]
    choices = [direct] if all(_grid(fabric, group).shape[1] == len(every) for group in groups) else [direct, every]
    best: GroupPacking | None = None
    for paths in choices if len(groups) > 1 else choices[::-1]:
        ways = tuple(
            tuple(way for path in paths for way in _ways(fabric, groups[each.group], each.root, path))
            for each in commodities
        )
        shares = tuple(np.full(len(each), 1 / len(each)) for each in ways)
        packing = _with_bound(
            fabric, GroupPacking(groups, commodities, ways, shares, nothing, Fraction(0)), len(paths), close
        )
        gap = packing.gap
        best = packing if best is None or best.gap is None or (gap is not None and gap < best.gap) else best
        if gap is not None and gap <= close:
            break
    return best


@lru_cache(maxsize=256)
def _grid(fabric: RailFabric, group: Group) -> NDArray[np.int64]:
    """Return the group's members as int64[boxes, positions in the box]; empty if positions differ between boxes."""
    ranks = list(group.ranks)
    order, boxes = np.lexsort((fabric.place[ranks], fabric.box[ranks])), len(np.unique(fabric.box[ranks]))
    grid = order[: len(order) // boxes * boxes].reshape(boxes, -1)
    same = grid.size == len(ranks) and len(np.unique(fabric.place[ranks][grid], axis=0)) == 1
    return grid if same and (np.diff(fabric.box[ranks][grid], axis=1) == 0).all() else grid[:0]


def _with_bound(fabric: RailFabric, packing: GroupPacking, parts: int, close: Fraction) -> GroupPacking:
    """Return `packing` with the best bound that a few sets of prices prove, and with the gap to this bound.

    The gap is computed with `parts` chunks per shard. If `close` is above 1 %, the first bound with a gap of at most
    `close` is used.
    """
    topology = fabric.topology
    time, busy = busiest(topology, loads_of(topology, packing, parts))
    links, members = topology.links, sorted({rank for group in packing.groups for rank in group.ranks})
    nics, into = np.zeros((2, len(links)), dtype=np.bool_)  # a link of each NIC, in one direction; all links into ranks
    if fabric.boxes > 1:
        nics[fabric.narrowest[1]] = True
    into[[link for path in fabric.nic_links[1] for link in path]] = True
    into |= links.dst < topology.compute_count
    ends = np.isin(links.dst, members), np.isin(links.src, members)
    for prices in (busy, *_around_roots(fabric, packing.groups), *ends, busy & into, busy & ~into, nics, into & ~nics):
        lower = proven_time(topology, packing.groups, prices.astype(int).tolist())
        if lower > packing.lower:
            packing = replace(packing, prices=prices.astype(np.int64), lower=lower, gap=time / lower - 1)
        if time == lower or (packing.gap is not None and _CLOSE < packing.gap <= close):
            break
    return packing


def _around_roots(fabric: RailFabric, groups: tuple[Group, ...]) -> Iterator[NDArray[np.bool_]]:
    """Yield bool[links]: the links out of broadcast roots (or their boxes) and into reduce roots (or their boxes)."""
    links = fabric.topology.links
    for name, side, ends in ((CollectiveName.BROADCAST, 0, links.src), (CollectiveName.REDUCE, 1, links.dst)):
        rooted = [each for each in groups if each.collective.name == name]
        roots = [each.ranks[each.collective.root or 0] for each in rooted]
        if roots:
            yield np.isin(ends, roots)
        if roots and fabric.boxes > 1:
            boxes = fabric.members[np.unique(fabric.box[roots])]
            yield np.isin(np.arange(len(links)), fabric.narrowest[side, boxes])


def _ways(fabric: RailFabric, group: Group, root: int, path: PathOf) -> tuple[Routing, ...]:
    name, ranks = group.collective.name, len(group.ranks)
    if name == CollectiveName.ALLTOALL:
        return (routing(group, root, path),)
    if name == CollectiveName.ALLREDUCE:
        trees = [_tree(fabric, group, start) for start in range(ranks)]
        return tuple(routing(group, start, path, tree, tree) for start, tree in enumerate(trees))
    trees = [_tree(fabric, group, root)]
    if group.collective.is_rooted:  # the root's data are divided equally among the NICs of its box
        trees = [_tree(fabric, group, root, entry) for entry in range(_grid(fabric, group).shape[1])]
    if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        return tuple(routing(group, root, path, down=tree) for tree in trees)
    return tuple(routing(group, root, path, up=tree) for tree in trees)


def _tree(fabric: RailFabric, group: Group, root: int, entry: int | None = None) -> Parents:
    """Return a tree from `root` through all members, box after box.

    In a box with a switch, the tree is a path. In a box with links between all pairs of members, the member that
    the data reach first sends them to all others.

    entry: position of the member in each box that sends to the next box; by default, the root's position or, if boxes
           have switches, positions in turn
    """
    grid = _grid(fabric, group)
    boxes, width = grid.shape
    box, start = (int(index[0]) for index in np.nonzero(grid == root))
    is_turning = entry is None and fabric.has_switch
    starts = (start if entry is None else entry) - np.arange(boxes) * is_turning
    places = (starts[:, None] + np.arange(width)) % width
    order = np.take_along_axis(np.roll(grid, -box, axis=0), places, axis=1)
    parents = np.full(grid.size, -1, dtype=np.int64)
    parents[order[:, 1:]] = order[:, :-1] if fabric.has_switch else order[:, :1]
    parents[order[1:, 0]] = order[:-1, -1 if is_turning else 0]
    if order[0, 0] != root:  # the root sends to the first member of its box, and no member sends to the root
        place = int(np.flatnonzero(order[0] == root)[0])
        if place + 1 < width:
            parents[order[0, place + 1]] = parents[root]
        parents[order[0, 0]], parents[root] = root, -1
    return parents
