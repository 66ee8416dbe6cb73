"""Models boxes with rails, as in most GPU clusters. Lanes join a box's GPUs, and NICs lead to rails.

A rank's place is its index in its box. The NICs at the same place in all boxes share a switch, the rail. This module
also models how libraries send traffic on such networks: each pair uses one path, through one relay. NCCL sends from the
sender's NIC or, with PXN (2.12 and later), from the NIC of the local rank that has the receiver's index, so that data
arrive at the receiver's own NIC. Two-level exchanges (Tutel, DeepSpeed) do the same in two phases, one inside boxes and
one between ranks with the same index.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.balance import IntegralFlows
from chorale.synth.methods.alltoall.linear_program import Commodities, commodities_of
from chorale.synth.methods.alltoall.rate import distances_by
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology

Ranks = NDArray[np.int32]
Amounts = NDArray[np.int64]
Classes = list[tuple[int, NDArray[np.int64]]]
"""For each distinct bandwidth in a table: (bandwidth, indices of the entries that have it)."""
Rail = Literal["sender", "receiver"]
RAILS: tuple[Rail, ...] = ("sender", "receiver")


class RailLoads(NamedTuple):
    """Amounts of data on every lane and NIC.

    place:     int32[ranks], each rank's place (index) in its box
    inside:    int64[ranks, places], amounts sent over lanes from a rank to a place in its box
    out, into: int64[ranks], amounts sent and received by each rank's NIC
    """

    place: Ranks
    inside: Amounts
    out: Amounts
    into: Amounts


class Relays(NamedTuple):
    """Ranks whose NICs send (`sender`) and receive (`receiver`) a pair's data, int32[source, target]; -1 in a box."""

    sender: Ranks
    receiver: Ranks


@dataclass(frozen=True, eq=False)
class RailFabric:
    """A network of boxes with rails: the box and place (index in the box) of each rank, and the links between ranks.

    members:    int32[boxes, places], each box's ranks, ascending; the NICs at the same place share a switch
    place, box: int32[ranks], place and box of each rank
    has_switch: whether a switch joins the ranks of a box; otherwise, links between all pairs do
    lanes:      bandwidth of each lane in units of 1 / `scale`. With a switch: int64[2, ranks], from each rank to the
                switch and back; without: int64[ranks, places], from each rank to all ranks in its box
    nics:       int64[2, ranks], bandwidths out of and into each rank's NIC, in the same unit
    lane_links: int32, link of each lane, in an array of the same shape as `lanes`
    nic_links:  the paths from each rank to its rail's switch, and the paths back, as links in travel order
    narrowest:  int32[2, ranks], the link with the least bandwidth on each of these paths
    is_apart:   whether NICs at different places have no common switch, so that only lanes join them
    """

    topology: Topology
    has_switch: bool
    members: Ranks
    place: Ranks
    box: Ranks
    lanes: Amounts
    nics: Amounts
    scale: int
    lane_links: Ranks
    nic_links: tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]
    narrowest: Ranks
    is_apart: bool

    @cached_property
    def rails(self) -> Ranks:
        """int32[ranks]: the switch at which the path from each rank's NIC ends; zeros for a single box."""
        ends = [path[-1] for path in self.nic_links[0]] or [0] * len(self.place)
        return self.topology.links.dst[ends].astype(np.int32)

    @property
    def boxes(self) -> int:
        return len(self.members)

    def loads_of(
        self,
        source: Ranks,
        target: Ranks,
        sender: Ranks,
        receiver: Ranks,
        amount: Amounts,
        inside: Amounts | None = None,
    ) -> RailLoads:
        """Return the loads that data on the paths of `Pieces` cause, added to existing loads of lanes (`inside`)."""
        ranks, places = len(self.place), self.members.shape[1]
        lanes = np.zeros((ranks, places), dtype=np.int64) if inside is None else inside.copy()
        loads = RailLoads(self.place, lanes, *np.zeros((2, ranks), dtype=np.int64))
        native.add_piece_loads(source, target, sender, receiver, amount, loads)
        return loads

    def tables(self, loads: RailLoads) -> list[Amounts]:
        """Return the loads as arrays: lanes (to and from the box's switch, or between pairs), NICs out, NICs in."""
        lanes = [loads.inside.ravel()]
        if self.has_switch:
            from_switch = np.empty_like(loads.out)
            from_switch[self.members] = loads.inside[self.members].sum(axis=1)
            lanes = [loads.inside.sum(axis=1), from_switch]
        return [*lanes, loads.out, loads.into] if self.boxes > 1 else lanes

    @cached_property
    def _classes(self) -> list[Classes]:
        """For each array that `tables` returns: the bandwidths of its lanes or NICs (see `Classes`)."""
        lanes = list(self.lanes) if self.has_switch else [self.lanes.ravel()]
        return list(map(_classes_of, [*lanes, *self.nics] if self.boxes > 1 else lanes))

    def time(self, loads: RailLoads) -> Fraction:
        """Return the time that the busiest lane or NIC needs, in units of data / bandwidth."""
        times = (self._longest(*pair)[0] for pair in zip(self.tables(loads), self._classes, strict=True))
        return max(times, default=Fraction(0))

    def _longest(self, amounts: Amounts, classes: Classes) -> tuple[Fraction, int]:
        """Return (largest amount / bandwidth, computed exactly; index of this entry)."""
        best, chosen = Fraction(0), -1
        for width, entries in classes:
            entry = int(entries[amounts[entries].argmax()])
            time = Fraction(int(amounts[entry]) * self.scale, width)
            if time > best:
                best, chosen = time, entry
        return best, chosen

    def cuts(self, sent: Amounts) -> tuple[Fraction, NDArray[np.int64]]:
        """Return (time of the slowest cut around a rank, a box or all ranks at one place; its links). O(ranks^2)."""
        best, chosen = Fraction(0), np.zeros(0, dtype=np.int64)
        amounts = sent.sum(axis=1), sent.sum(axis=0)
        for groups, has_lanes, has_nics, widths in self._cuts:
            within = sent[groups[:, :, None], groups[:, None, :]].sum(axis=(1, 2))
            for side in (0, 1):
                time, group = self._longest(amounts[side][groups].sum(axis=1) - within, widths[side])
                if time > best:
                    ranks = groups[group]
                    links = [self._lanes_of(rank, side) for rank in ranks.tolist() if has_lanes]
                    best, chosen = time, np.concatenate([*links, self.narrowest[side, ranks if has_nics else []]])
        return best, chosen

    @cached_property
    def _cuts(self) -> list[tuple[Ranks, bool, bool, list[Classes]]]:
        """For each kind of cut: (groups of ranks, whether lanes cross it, whether NICs do, bandwidths out and in)."""
        lanes = self.lanes
        if not self.has_switch:
            into = np.empty(len(self.place), dtype=np.int64)
            into[self.members] = self.lanes[self.members].sum(axis=1)
            lanes = np.array([self.lanes.sum(axis=1), into])
        several = self.boxes > 1
        kinds = [(np.arange(len(self.place), dtype=np.int32)[:, None], True, several)]
        kinds += [(self.members, False, True)] * several + [(self.members.T, True, False)] * self.is_apart

        def classes(groups: Ranks, has_lanes: bool, has_nics: bool) -> list[Classes]:
            widths = lanes * has_lanes + self.nics * has_nics
            return [_classes_of(of_rank[groups].sum(axis=1)) for of_rank in widths]

        return [(*kind, classes(*kind)) for kind in kinds]

    def _lanes_of(self, rank: int, side: int) -> Ranks:
        """Return the link ids of the lanes out of `rank` (side 0) or into `rank` (side 1)."""
        if self.has_switch:
            return self.lane_links[side, [rank]]
        box, place = self.members[self.box[rank]], self.place[rank]
        return np.delete(self.lane_links[rank] if side == 0 else self.lane_links[box, place], place)

    def lane(self, source: int, target: int) -> tuple[int, ...]:
        """Return the links from one rank to another in the same box."""
        if self.has_switch:
            return int(self.lane_links[0, source]), int(self.lane_links[1, target])
        return (int(self.lane_links[source, self.place[target]]),)

    def path(self, source: int, target: int, sender: int, receiver: int) -> tuple[int, ...]:
        """Return the links from `source` to `target` over the NICs of `sender` and `receiver` (-1: over no NIC).

        Inside a box, data may take a detour over a relay or NICs, as explained for `Pieces`.
        """
        if sender < 0:
            return self.lane(source, target)
        if sender == receiver:
            return (*self.lane(source, sender), *self.lane(sender, target))
        if self.box[source] == self.box[target] and sender != source:
            ways = (source, sender), (receiver, target)
            there, back = ((*self.nic_links[0][out], *self.nic_links[1][into]) for out, into in ways)
            return (*there, *self.lane(sender, receiver), *back)
        before = self.lane(source, sender) if sender != source else ()
        after = self.lane(receiver, target) if receiver != target else ()
        return (*before, *self.nic_links[0][sender], *self.nic_links[1][receiver], *after)

    def direct_path(self, source: int, target: int) -> tuple[int, ...]:
        direct = self.usual["direct"]
        return self.path(source, target, int(direct.sender[source, target]), int(direct.receiver[source, target]))

    def path_over(self, rail: int, source: int, target: int) -> tuple[int, ...]:
        """Return the links from `source` to `target`; between boxes, over the NICs at place `rail` of both boxes."""
        if self.box[source] == self.box[target]:
            return self.lane(source, target)
        return self.path(source, target, *self.members[self.box[[source, target]], rail].tolist())

    @cached_property
    def usual(self) -> dict[str, Relays]:
        """The relays that libraries use, for each of the baselines "direct", "sender_rail" and "receiver_rail"."""
        far = self.box[:, None] != self.box
        own, other = np.indices(far.shape, dtype=np.int32)
        problem = commodities_of(self.topology, symmetric=False)
        parents, ranks = ShortestPaths(problem).parents, len(self.place)
        ends = np.full((2, len(self.topology.links)), -1, dtype=np.int32)
        for rank in range(ranks if self.boxes > 1 else 0):
            ends[0, self.nic_links[0][rank][0]] = ends[1, self.nic_links[1][rank][-1]] = rank
        between = np.full((2, ranks * ranks), -1, dtype=np.int32)
        source, node = (index.ravel() for index in np.indices((ranks, ranks)))
        while (left := np.flatnonzero(node != source)).size:
            link = parents[source[left], node[left]]
            for side in (0, 1):
                rank_there = ends[side, problem.link_ids[link]]
                between[side, left] = np.where(rank_there >= 0, rank_there, between[side, left])
            node[left] = problem.src[link]
        relays = {"direct": Relays(*between.reshape(2, ranks, ranks))}
        for rail in RAILS:
            relay = relays_of(self.topology, rail).astype(np.int32)
            pair = (own, relay) if rail == "sender" else (relay, other)
            relays[f"{rail}_rail"] = Relays(*(np.where(far, side, np.int32(-1)) for side in pair))
        return relays


def _classes_of(widths: Amounts) -> Classes:
    return [(width, np.flatnonzero(widths == width)) for width in np.unique(widths).tolist() if width]


@lru_cache(maxsize=16)
def rail_fabric(topology: Topology) -> RailFabric | None:
    """Return `topology` as boxes with rails, or None if it does not consist of such boxes. O(links).

    All boxes must have the same number of ranks, at least two. A switch, or links between all pairs, must join them. If
    there are several boxes, each rank must have one path to its rail's switch, over switches that no other rank uses.
    """
    box = np.array(boxes_of(topology), dtype=np.int32)
    sizes = np.bincount(box)
    if sizes[0] < 2 or (sizes != sizes[0]).any():
        return None
    members = np.argsort(box, kind="stable").astype(np.int32).reshape(len(sizes), -1)
    place = np.empty(len(box), dtype=np.int32)
    place[members] = np.arange(members.shape[1])
    graph, groups = _Graph(topology), members.tolist()
    switches = [graph.switch_of(ranks) for ranks in groups]
    has_switch = None not in switches
    lane_links = np.zeros((2, len(box)) if has_switch else (len(box), members.shape[1]), dtype=np.int32)
    for ranks, switch in zip(groups, switches, strict=True):
        if has_switch:
            lane_links[:, ranks] = [
                graph.between((r, switch) for r in ranks),
                graph.between((switch, r) for r in ranks),
            ]
        else:
            for index, rank in enumerate(ranks):
                lane_links[rank] = graph.between((rank, other) for other in ranks)
                lane_links[rank, index] = 0
    nics = _nics(graph, groups, switches)
    if nics is None or int(lane_links.min()) < 0:
        return None
    widths, scale = topology.links.integer_bandwidths()
    lanes = widths[lane_links]
    if not has_switch:  # a rank has no lane to itself
        lanes[np.arange(len(box)), place] = 0
    narrowest = [[min(path, key=lambda link: int(widths[link])) for path in side] for side in nics if side]
    limits = np.array(narrowest, dtype=np.int32).reshape(2, -1)
    bandwidths = widths[limits] if len(sizes) > 1 else np.ones((2, len(box)), dtype=np.int64)
    is_apart = len(sizes) > 1 and _are_apart(graph, nics[0], topology, members.shape[1])
    fields = topology, has_switch, members, place, box, lanes, bandwidths, scale, lane_links, nics, limits, is_apart
    return RailFabric(*fields)


class _Graph:
    """Looks up neighbours and links of a network's nodes.

    near:  for each node, the nodes to or from which it has a link
    links: for each pair of nodes, the id of the link from the first to the second; -1 if there are several
    """

    def __init__(self, topology: Topology) -> None:
        self.ranks = topology.compute_count
        self.near: list[set[int]] = [set() for _ in range(topology.node_count)]
        self.links: dict[tuple[int | None, int | None], int] = {}
        for link, ends in enumerate(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True)):
            if ends[0] != ends[1]:
                self.links[ends] = -1 if ends in self.links else link
                self.near[ends[0]].add(ends[1])
                self.near[ends[1]].add(ends[0])

    def between(self, pairs: Iterable[tuple[int | None, int | None]]) -> list[int]:
        """Return the link between each pair of nodes, or -1 if there is no link or more than one."""
        return [self.links.get(pair, -1) for pair in pairs]

    def switch_of(self, ranks: list[int]) -> int | None:
        """Return the switch that joins only `ranks`, or None if there is none or if ranks are linked to each other."""
        inside = set(ranks)
        switches = [node for node in self.near[ranks[0]] if node >= self.ranks and self.near[node] == inside]
        is_alone = len(switches) == 1 and all(self.near[rank].isdisjoint(inside) for rank in ranks)
        return switches[0] if is_alone else None

    def path_out(self, rank: int, box: set[int]) -> list[int] | None:
        """Return the nodes on the path from `rank` to its rail's switch, or None if there is no such path.

        If the path leads to another rank instead, the result ends at the middle node, which serves as the switch.
        """
        outside = self.near[rank] - box
        path = [rank]
        while len(outside) == 1:
            path.append(outside.pop())
            if path[-1] < self.ranks:
                return path[: len(path) // 2 + 1] if len(path) > 2 else None
            if len(self.near[path[-1]]) > 2:
                return path
            outside = self.near[path[-1]] - {path[-2]}
        return None


def _nics(
    graph: _Graph, groups: list[list[int]], switches: Sequence[int | None]
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]] | None:
    """Return (links from each rank to its rail's switch, links back); empty for one box. None if there are no rails."""
    boxes = [{*ranks, *([] if switch is None else [switch])} for ranks, switch in zip(groups, switches, strict=True)]
    if len(groups) == 1:  # nodes outside the box must be dead ends
        outside = (node for rank in boxes[0] for node in graph.near[rank] - boxes[0])
        return ((), ()) if all(len(graph.near[node]) == 1 for node in outside) else None
    ends: list[set[int]] = [set() for _ in groups[0]]
    paths: dict[int, list[int]] = {}
    for ranks, box in zip(groups, boxes, strict=True):
        for place, rank in enumerate(ranks):
            path = graph.path_out(rank, box)
            if path is None:
                return None
            ends[place].add(path[-1])
            paths[rank] = path
    ways = [paths[rank] for rank in range(len(paths))]
    there = tuple(tuple(graph.between(pairwise(way))) for way in ways)
    back = tuple(tuple(graph.between(pairwise(way[::-1]))) for way in ways)
    joined = all(len(of_place) == 1 for of_place in ends)
    return (there, back) if joined and min(map(min, there + back)) >= 0 else None


def _are_apart(graph: _Graph, there: tuple[tuple[int, ...], ...], topology: Topology, places: int) -> bool:
    """Return whether each place (index in a box) has its own switch, which is linked only to NICs at this place."""
    ends: dict[int, set[int]] = {}
    for path in there:
        ends.setdefault(int(topology.links.dst[path[-1]]), set()).add(int(topology.links.src[path[-1]]))
    return len(ends) == places and all(graph.near[switch] == nics for switch, nics in ends.items())


class ShortestPaths:
    """A shortest path from every rank to every node. If several links can be the last one, the first of them is used.

    hops:    float64[ranks, nodes], length of each path
    parents: int64[ranks, nodes], each path's last link; -1 at the source
    """

    def __init__(self, problem: Commodities) -> None:
        self.problem = problem
        self.hops = distances_by(problem, np.ones(problem.link_count))
        nearer = self.hops[:, problem.src] + 1 == self.hops[:, problem.dst]
        self.parents = np.full(self.hops.shape, -1, dtype=np.int64)
        for link in range(problem.link_count - 1, -1, -1):
            rows = np.flatnonzero(nearer[:, link])
            self.parents[rows, problem.dst[link]] = link

    def loads(self, demand: NDArray[np.int64], starts: NDArray[np.int64] | None = None) -> IntegralFlows:
        """Return int64[links]: the load of every link if rank `starts[i]` sends row i of `demand` (int64[rows, nodes]).

        Without `starts`, rank i sends row i. O(rows * nodes * longest path).
        """
        problem = self.problem
        hops, parents = (self.hops, self.parents) if starts is None else (self.hops[starts], self.parents[starts])
        need, loads = demand.copy(), np.zeros(problem.link_count, dtype=np.int64)
        for distance in range(int(hops.max()), 0, -1):
            row, node = np.nonzero((hops == distance) & (need > 0))
            link = parents[row, node]
            np.add.at(loads, link, need[row, node])
            np.add.at(need, (row, problem.src[link]), need[row, node])
        return loads


def relays_of(topology: Topology, rail: Rail) -> NDArray[np.int64]:
    """Return int64[ranks, ranks]: the rank that relays the data from row to column, or the row itself within a box.

    If `rail` is "sender", this is the rank with the sender's index in the receiver's box. If it is "receiver", this is
    the rank with the receiver's index in the sender's box. Indices are taken modulo the number of ranks in the box.
    """
    box = np.array(boxes_of(topology))
    members = [np.flatnonzero(box == number) for number in range(int(box.max()) + 1)]
    index = np.empty(len(box), dtype=np.int64)
    for inside in members:
        index[inside] = np.arange(len(inside))
    widest = max(len(inside) for inside in members)
    rank_of = np.array([np.resize(inside, widest) for inside in members])
    near, same = (box[None, :], index[:, None]) if rail == "sender" else (box[:, None], index[None, :])
    own = np.arange(len(box))[:, None]
    return np.where(box[:, None] == box[None, :], own, rank_of[near, same])


def leg_demands(demand: NDArray[np.int64], relays: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (amounts that ranks send to relays, amounts that relays forward), arrays of the same shape as `demand`.

    Data within a box need no relay. Only the second array contains them, in the row of their source.
    """
    ranks = len(relays)
    first, second = np.zeros_like(demand), np.zeros_like(demand)
    source, target = np.nonzero(demand[:, :ranks])
    amount, relay = demand[source, target], relays[source, target]
    np.add.at(first, (source, relay), np.where(relay == source, 0, amount))
    np.add.at(second, (relay, target), np.where(relay == target, 0, amount))
    return first, second
