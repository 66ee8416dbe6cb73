"""Several collectives at once: how all of them share every link so that the last ends as early as possible.

The least T such that each commodity (a root of trees, a source of an all-to-all) is split over ways to move it, and no
link carries more than T times its bandwidth. Solved by column generation: prices of links from the linear program over
the ways so far, then the cheapest way of every commodity at these prices. Prices are also the proof: in time T links
earn at most T * price * bandwidth, and every commodity pays at least what its cheapest way costs. Schedules follow the
ways in whole chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.bounds.tree_pairs import cheapest_tree
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.linear_program import minimum, of_entries
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import Group, GroupNetwork, network_of_group, require_few, require_groups
from chorale.synth.methods.groups.rings import (
    Commodity,
    Edge,
    Floats,
    GroupPacking,
    Routing,
    commodities_of,
    counts_of,
    pack_over_rails,
    time_in_chunks,
    units_of,
)
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify


@dataclass(frozen=True)
class PricedPaths:
    """Cheapest paths. distance: float64[nodes, nodes];  last: the last link of each path, -1 for none."""

    distance: Floats
    last: NDArray[np.int64]
    source: NDArray[np.int32]

    @staticmethod
    def of(topology: Topology, prices: Floats) -> PricedPaths:
        """Return the paths by `prices` > 0, one per link. O(nodes^3)."""
        nodes, links = topology.node_count, topology.links
        distance = np.full((nodes, nodes), np.inf)
        last = np.full((nodes, nodes), -1, dtype=np.int64)
        for link in np.argsort(-prices, kind="stable").tolist():  # the cheapest of parallel links is written last
            src, dst = int(links.src[link]), int(links.dst[link])
            if src != dst:
                distance[src, dst], last[src, dst] = prices[link], link
        np.fill_diagonal(distance, 0.0)
        for middle in range(nodes):
            through = distance[:, middle, None] + distance[middle]
            better = through < distance
            distance[better] = through[better]
            last[better] = np.broadcast_to(last[middle], last.shape)[better]
        return PricedPaths(distance, last, links.src)

    def path(self, source: int, target: int) -> list[int]:
        """Return the links from `source` to `target` in travel order."""
        links: list[int] = []
        while target != source:
            link = int(self.last[source, target])
            links.append(link)
            target = int(self.source[link])
        return links[::-1]


def cheapest_way(group: Group, root: int, paths: PricedPaths) -> Routing:
    """Return the cheapest way for the root or source at place `root` of `group`. O(ranks^3), for allreduce to ^4."""
    members = np.array(group.ranks)
    cost = paths.distance[np.ix_(members, members)]
    name = group.collective.name
    if name == CollectiveName.ALLTOALL:
        others = [place for place in range(len(members)) if place != root]
        return Routing(tuple(Edge(0, root, place, _path(paths, group, root, place), target=place) for place in others))
    if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        return Routing(tuple(_outward(group, paths, cheapest_tree(cost, root), root, 0)))
    if name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE):
        return Routing(tuple(_inward(group, paths, cheapest_tree(cost.T, root), root)))
    up, down, root = _cheapest_pair(cost)
    inward = _inward(group, paths, up, root)
    height = 1 + max(edge.depth for edge in inward)
    return Routing((*inward, *_outward(group, paths, down, root, height)))


def _cheapest_pair(cost: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the parents of a tree into and of one out of the same root, and the root, with the least cost of all."""
    if np.allclose(cost, cost.T, rtol=1e-12, atol=0):
        tree = cheapest_tree(cost, 0)
        return tree, tree, 0
    pairs = [(cheapest_tree(cost.T, root), cheapest_tree(cost, root), root) for root in range(len(cost))]
    return min(pairs, key=lambda pair: tree_cost(cost.T, pair[0]) + tree_cost(cost, pair[1]))


def tree_cost(cost: Floats, parent: NDArray[np.int64]) -> float:
    """Return what the edges from the parents of all nodes cost."""
    nodes = np.flatnonzero(parent >= 0)
    return float(cost[parent[nodes], nodes].sum())


def _outward(group: Group, paths: PricedPaths, parent: NDArray[np.int64], root: int, first: int) -> list[Edge]:
    depths = _depths(parent, root)
    return [
        Edge(first + depths[above], above, place, _path(paths, group, above, place))
        for place, above in enumerate(parent.tolist())
        if above >= 0
    ]


def _inward(group: Group, paths: PricedPaths, parent: NDArray[np.int64], root: int) -> list[Edge]:
    depths = _depths(parent, root)
    last = max(depths) - 1
    return [
        Edge(last - depths[above], place, above, _path(paths, group, place, above), reduces=True)
        for place, above in enumerate(parent.tolist())
        if above >= 0
    ]


def _depths(parent: NDArray[np.int64], root: int) -> list[int]:
    depths = {root: 0}

    def depth(node: int) -> int:
        chain = []
        while node not in depths:
            chain.append(node)
            node = int(parent[node])
        for step, below in enumerate(reversed(chain), 1):
            depths[below] = depths[node] + step
        return depths[chain[0]] if chain else depths[node]

    return [depth(node) for node in range(len(parent))]


def _path(paths: PricedPaths, group: Group, sender: int, receiver: int) -> tuple[int, ...]:
    return tuple(paths.path(group.ranks[sender], group.ranks[receiver]))


MAX_ROUNDS = 80
_BEHIND = 1e-3
_MOST_BOUNDS = 32
"""Groups whose own bounds are tried where prices prove less."""
_CLOSE = 1e-4
_LEAST_PRICE = 1e-7
_STEADY = 0.5
_LEAST_SHARE = 1e-9


def pack_groups(topology: Topology, groups: Sequence[Group]) -> GroupPacking:
    """Return how the groups share the fabric, and the proof of the least time. Deterministic.

    Raises InvalidInput as `require_groups` does. Each round solves a linear program of links + commodities rows.
    """
    chosen = tuple(groups)
    require_groups(topology, chosen)
    over_rails = pack_over_rails(topology, chosen)
    if over_rails is not None:
        return over_rails
    require_few(chosen)
    commodities = commodities_of(chosen)
    links = topology.links
    widths = np.array([float(width) for width in links.bandwidths])[links.bandwidth_class]
    ways: list[list[Routing]] = [[] for _ in commodities]
    center = 1.0 / widths / len(widths)
    best_lower, best_prices, prices = 0.0, center, center
    for _ in range(MAX_ROUNDS):
        paths = PricedPaths.of(topology, prices + _LEAST_PRICE * float(center.min()))
        paid = 0.0
        for number, commodity in enumerate(commodities):
            way = cheapest_way(chosen[commodity.group], commodity.root, paths)
            paid += float(commodity.amount) * float(prices[way.links].sum())
            ways[number].append(way)
        lower = paid / float(prices @ widths)
        if lower > best_lower:
            best_lower, best_prices = lower, prices
        shares, duals, time = _master(commodities, ways, widths)
        if time <= best_lower * (1 + _CLOSE):
            break
        prices = _STEADY * best_prices / float(best_prices @ widths) + (1 - _STEADY) * duals / float(duals @ widths)
    whole = _best_prices(topology, chosen, [best_prices, duals], time)
    return GroupPacking(chosen, commodities, *_used(ways, shares), whole, proven_time(topology, chosen, whole.tolist()))


def _best_prices(
    topology: Topology, groups: tuple[Group, ...], candidates: Sequence[Floats], time: float
) -> NDArray[np.int64]:
    back = _links_back(topology)
    both = [(prices + prices[back]) / 2 for prices in candidates] if back is not None else []
    whole = [integer_prices(prices) for prices in (*candidates, *both)]
    best = max(whole, key=lambda prices: proven_time(topology, groups, prices.tolist()))
    if time <= float(proven_time(topology, groups, best.tolist())) * (1 + _BEHIND):
        return best
    of_groups = [prices_of_group(topology, group) for group in groups[:_MOST_BOUNDS]]
    return max([best, *of_groups], key=lambda prices: proven_time(topology, groups, prices.tolist()))


def prices_of_group(topology: Topology, group: Group) -> NDArray[np.int64]:
    """Return prices of links that prove, for `group` alone, what the bound of its collective does by cuts."""
    network = network_of_group(topology, group)
    bound = lower_bound(network.topology, group.collective)
    if bound.prices:
        return np.array(bound.prices)[network.link]
    parts = bound.parts if bound.kind in ("received", "sent") else (bound.nodes,)
    grouped = {node for part in parts for node in part}
    alone = [(rank,) for rank in range(len(group.ranks)) if rank not in grouped]
    ends = [network.topology.links.src, network.topology.links.dst]
    prices = np.zeros(len(topology.links), dtype=np.int64)
    for part in (*parts, *(alone if bound.kind in ("received", "sent") else ())):
        here, there = (np.isin(side, part) for side in (ends if bound.kind in ("sent", "out-of") else ends[::-1]))
        prices += here & ~there
    return prices[network.link]


def _links_back(topology: Topology) -> NDArray[np.int64] | None:
    """Return a link of the same bandwidth back for each link, None where there is none."""
    links = topology.links
    there = np.lexsort((links.bandwidth_class, links.src, links.dst))
    back = np.lexsort((links.bandwidth_class, links.dst, links.src))
    same = np.array_equal(links.src[there], links.dst[back]) and np.array_equal(links.dst[there], links.src[back])
    if not same or not np.array_equal(links.bandwidth_class[there], links.bandwidth_class[back]):
        return None
    mates = np.empty(len(links), dtype=np.int64)
    mates[there] = back
    return mates


def _master(
    commodities: Sequence[Commodity], ways: Sequence[Sequence[Routing]], widths: Floats
) -> tuple[list[Floats], Floats, float]:
    """Return the best shares of the ways so far, prices of links, and the time."""
    links, columns = len(widths), [len(each) for each in ways]
    rows, places, values = [], [], []
    column = 0
    for number, (commodity, listed) in enumerate(zip(commodities, ways, strict=True)):
        for way in listed:
            used, times = np.unique(way.links, return_counts=True)
            rows += [*used.tolist(), links + number]
            values += [*(times * float(commodity.amount) / widths[used]).tolist(), -1.0]
            places += [column] * (len(used) + 1)
            column += 1
    rows += list(range(links))
    places += [column] * links
    values += [-1.0] * links
    entries = np.array(rows), np.array(places), np.array(values)
    matrix = of_entries(*entries, links + len(commodities), column + 1)
    bound = np.concatenate([np.zeros(links), -np.ones(len(commodities))])
    objective = np.zeros(column + 1)
    objective[-1] = 1.0
    flow, marginals = minimum(objective, matrix, bound, "plan fewer groups at once")
    shares = np.split(np.maximum(flow[:-1], 0.0), np.cumsum(columns)[:-1])
    return list(shares), np.abs(marginals[:links]) / widths, float(flow[-1])


def _used(
    ways: Sequence[Sequence[Routing]], shares: Sequence[Floats]
) -> tuple[tuple[tuple[Routing, ...], ...], tuple[Floats, ...]]:
    """Return the ways that carry anything, equal ones once, and their shares, which add up to 1."""
    kept_ways, kept_shares = [], []
    for listed, parts in zip(ways, shares, strict=True):
        merged: dict[Routing, float] = {}
        for way, share in zip(listed, parts.tolist(), strict=True):
            if share > _LEAST_SHARE:
                merged[way] = merged.get(way, 0.0) + share
        kept_ways.append(tuple(merged))
        kept_shares.append(np.array(list(merged.values())) / sum(merged.values()))
    return tuple(kept_ways), tuple(kept_shares)


CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NEARLY_BEST = Fraction(1001, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class GroupSchedule:
    """network: the fabric as the group sees it;  loads: per link of the fabric, in the units of amounts."""

    group: Group
    network: GroupNetwork
    verified: VerifiedSchedule
    loads: tuple[Fraction, ...]


@dataclass(frozen=True, slots=True, eq=False)
class SharedSchedules:
    """Schedules of all groups. time: the busiest link needs it for all of them together, in amount / bandwidth."""

    topology: Topology
    members: tuple[GroupSchedule, ...]
    time: Fraction
    lower: Fraction
    chunks: int

    @property
    def gap(self) -> Fraction:
        return self.time / self.lower - 1


def shared_schedules(topology: Topology, packing: GroupPacking, chunks: int | None = None) -> SharedSchedules:
    """Return verified schedules for all groups of `packing`, with so many chunks per shard, or few that suffice.

    Loads are those of the verified rows; CheckFailed if they are not what the packing promised.
    """
    counts = [chunks] if chunks is not None else list(CHUNK_COUNTS)
    times = []
    for each in counts:
        times.append((time_in_chunks(topology, packing, each), each))
        if times[-1][0] <= packing.lower * _NEARLY_BEST:
            break
    best = min(time for time, _ in times)
    time, count = next(pair for pair in times if pair[0] <= best * _NEARLY_BEST)
    members = tuple(_member(topology, packing, number, count) for number in range(len(packing.groups)))
    together = time_together(topology, [member.loads for member in members])
    if together != time:
        raise CheckFailed(
            "schedules of groups must load links as planned", f"{together} instead of {time}", "report it"
        )
    return SharedSchedules(topology, members, together, packing.lower, count)


def time_together(topology: Topology, loads: Sequence[Sequence[Fraction]]) -> Fraction:
    """Return the time in which the busiest link carries the loads of all groups, in amount / bandwidth."""
    sums = [sum(of_link, Fraction(0)) for of_link in zip(*loads, strict=True)]
    return max(load / link.bandwidth for load, link in zip(sums, topology.links, strict=True))


def _member(topology: Topology, packing: GroupPacking, number: int, chunks: int) -> GroupSchedule:
    group = packing.groups[number]
    network = network_of_group(topology, group)
    schedule = _schedule(network, group, list(_pieces(packing, number, chunks)), chunks)
    verified = verify(schedule)
    rows, routes = schedule.transfers, schedule.routes
    loads = np.zeros(len(topology.links), dtype=np.int64)
    for route, size in zip(rows.route.tolist(), (rows.hi.astype(np.int64) - rows.lo).tolist(), strict=True):
        np.add.at(loads, routes.path(route), size)
    part = group.amount * schedule.chunk_part
    return GroupSchedule(group, network, verified, tuple(part * int(load) for load in loads[network.link].tolist()))


@dataclass(frozen=True, slots=True)
class _Piece:
    """Units `first` to `last` - 1 of the commodity of `root` take a way."""

    root: int
    way: Routing
    first: int
    last: int


def _pieces(packing: GroupPacking, number: int, chunks: int) -> Iterator[_Piece]:
    for index, commodity in enumerate(packing.commodities):
        if commodity.group != number:
            continue
        first = 0
        counts = counts_of(packing.shares[index], units_of(packing, commodity, chunks))
        for way, count in zip(packing.ways[index], counts, strict=True):
            if count:
                yield _Piece(commodity.root, way, first, first + count)
            first += count


def _schedule(network: GroupNetwork, group: Group, pieces: Sequence[_Piece], chunks: int) -> Schedule:
    """Return the schedule on the network as the group sees it. Sums come before copies in every tree."""
    topology = network.topology
    routes: dict[tuple[int, ...], int] = {}
    rows: list[tuple[int, int, int, int, int, int]] = []
    for piece in pieces:
        for edge in piece.way.edges:
            path = tuple(int(network.link[link]) for link in edge.path)
            route = routes.setdefault(path, len(routes))
            for shard, low, high in _intervals(group, piece, edge, chunks):
                rows.append((edge.depth, route, shard, low, high, int(edge.reduces)))
    table = np.array(sorted(rows), dtype=np.int64).T
    steps = 1 + int(table[0].max())
    ranks = topology.compute_count
    shards = ranks * ranks if group.collective.is_alltoall else ranks
    bounds = ColumnBounds(steps, len(routes), shards, chunks)
    return Schedule(
        topology, group.collective, "pipelined", steps, chunks, bounds.pack(list(table)), Routes.of_paths(routes),
        "groups", {"group": group.name},
    )  # fmt: skip


def _intervals(group: Group, piece: _Piece, edge: Edge, chunks: int) -> Iterator[tuple[int, int, int]]:
    """Yield (shard, first chunk, the one after the last) of what an edge moves."""
    name, ranks = group.collective.name, len(group.ranks)
    if name == CollectiveName.ALLTOALL:
        yield piece.root * ranks + edge.target, piece.first, piece.last
        return
    if group.commodities > 1:
        yield piece.root, piece.first, piece.last
        return
    for shard in range(piece.first // chunks, (piece.last - 1) // chunks + 1):
        yield shard, max(0, piece.first - shard * chunks), min(chunks, piece.last - shard * chunks)
