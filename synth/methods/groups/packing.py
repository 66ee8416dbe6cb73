"""Plans concurrent collectives: divides the links among them so that the last collective ends as early as possible.

A commodity is the data of one tree root or of one all-to-all source. A routing (`way` in the code) is one possible set
of paths for a commodity. We look for the least time T for which commodities can be divided among routings so that no
link carries more than T times its bandwidth. Column generation solves this problem: a linear program over the known
routings gives link prices, and the cheapest routing of every commodity at these prices is added. Prices also prove a
bound: in time T, the data on a link cost at most T * price * bandwidth, and every commodity costs at least as much as
its cheapest routing. In schedules, commodities are divided into whole chunks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.lower_bound import lower_bound
from chorale.synth.collective import CollectiveName
from chorale.synth.errors import CheckFailed
from chorale.synth.lazy_modules import csgraph, sparse
from chorale.synth.linear_program import minimum, of_entries
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.methods.groups import rings
from chorale.synth.methods.groups.certificate import proven_time
from chorale.synth.methods.groups.group import (
    Group,
    GroupNetwork,
    are_few,
    network_of_group,
    require_few,
    require_groups,
)
from chorale.synth.methods.in_network.trees import mates_of
from chorale.synth.methods.spanning_trees import cheapest_tree
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.topology.topology import Topology
from chorale.synth.verify.verified import VerifiedSchedule
from chorale.synth.verify.verify import verify


def cheapest_paths(topology: Topology, prices: rings.Floats) -> tuple[rings.Floats, rings.PathOf]:
    """Return (float64[nodes, nodes]: costs of cheapest paths at `prices` > 0, function that returns such a path)."""
    nodes, links = topology.node_count, topology.links
    link_of = np.full((nodes, nodes), -1, dtype=np.int64)
    order = np.argsort(-prices, kind="stable")  # of parallel links, the cheapest is written last
    link_of[links.src[order], links.dst[order]] = order
    np.fill_diagonal(link_of, -1)
    src, dst = np.nonzero(link_of >= 0)
    matrix = sparse.csr_array((prices[link_of[src, dst]], (src, dst)), shape=(nodes, nodes))
    distance, before = csgraph.dijkstra(matrix, return_predecessors=True)

    def path(source: int, target: int) -> tuple[int, ...]:
        found: list[int] = []
        while target != source:
            node = int(before[source, target])
            found.append(int(link_of[node, target]))
            target = node
        return tuple(found[::-1])

    return distance, path


def cheapest_way(group: Group, root: int, distance: rings.Floats, path: rings.PathOf) -> rings.Routing:
    """Return the cheapest routing for the data of member `root`. For an allreduce, tries a few roots. O(ranks^3)."""
    cost, name = distance[np.ix_(group.ranks, group.ranks)], group.collective.name
    if name == CollectiveName.ALLTOALL:
        return rings.routing(group, root, path)
    if name in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        return rings.routing(group, root, path, down=cheapest_tree(cost, root))
    if name in (CollectiveName.REDUCE_SCATTER, CollectiveName.REDUCE):
        return rings.routing(group, root, path, up=cheapest_tree(cost.T, root))
    if np.allclose(cost, cost.T, rtol=1e-12, atol=0):
        tree = cheapest_tree(cost, 0)
        return rings.routing(group, 0, path, tree, tree)
    starts = range(0, len(cost), -(-len(cost) // _STARTS))
    pairs = [(cheapest_tree(cost, start), cheapest_tree(cost.T, start), start) for start in starts]
    down, up, start = min(pairs, key=lambda pair: tree_cost(cost, pair[0]) + tree_cost(cost.T, pair[1]))
    return rings.routing(group, start, path, down, up)


def tree_cost(cost: rings.Floats, parents: rings.Parents) -> float:
    nodes = np.flatnonzero(parents >= 0)
    return float(cost[parents[nodes], nodes].sum())


MAX_ROUNDS = 80
_BEHIND = 1e-3
_MOST_BOUNDS = 32
"""Maximum number of groups whose separate bounds are tried if the common prices do not prove a good bound."""
_CLOSE = 1e-4
_LEAST_PRICE = 1e-7
_STEADY = 0.5
_STARTS = 8  # roots to try for an allreduce if prices depend on the direction
_LEAST_SHARE = 1e-9


def pack_groups(topology: Topology, groups: Sequence[Group], close: Fraction = Fraction(1, 100)) -> rings.GroupPacking:
    """Return the best division of the network among the groups, and a lower bound on the time. Deterministic.

    Each of at most 80 rounds solves a linear program with one row per link and one per commodity. On boxes with rails,
    a plan in closed form is made first. It is returned if its time is at most the fraction `close` above the bound or
    if there are too many commodities for the linear program; otherwise, the rounds start from it.

    Raises:
        InvalidInput: if the groups cannot be planned together.
    """
    chosen = tuple(groups)
    require_groups(topology, chosen)
    rails = rings.pack_over_rails(topology, chosen, close)
    if rails is not None and rails.gap is not None and (rails.gap <= close or not are_few(chosen)):
        return rails
    require_few(chosen)
    commodities = rings.commodities_of(chosen)
    links = topology.links
    widths = np.array([float(width) for width in links.bandwidths])[links.bandwidth_class]
    center = 1.0 / widths / len(widths)
    ways: list[list[rings.Routing]] = [[] for _ in commodities]
    best_lower, best_prices, prices, enough = 0.0, center, center, _CLOSE
    if rails is not None and rails.gap is not None:  # start there; rounding to chunks uses up the rest of `close`
        ways, enough = [list(listed) for listed in rails.ways], float(close) / 4
        best_lower, best_prices = float(rails.lower), rails.prices / float(rails.prices @ widths)
        prices = (best_prices + center) / 2
    for _ in range(MAX_ROUNDS):
        distance, path = cheapest_paths(topology, prices + _LEAST_PRICE * float(center.min()))
        paid = 0.0
        for number, commodity in enumerate(commodities):
            way = cheapest_way(chosen[commodity.group], commodity.root, distance, path)
            paid += float(commodity.amount) * float(prices[way.links].sum())
            ways[number].append(way)
        lower = paid / float(prices @ widths)
        if lower > best_lower:
            best_lower, best_prices = lower, prices
        shares, duals, time = _master(commodities, ways, widths)
        if time <= best_lower * (1 + enough):
            break
        prices = _STEADY * best_prices / float(best_prices @ widths) + (1 - _STEADY) * duals / float(duals @ widths)
    whole = _best_prices(topology, chosen, [best_prices, duals], time)
    proven = proven_time(topology, chosen, whole.tolist())
    if rails is not None and rails.gap is not None:
        if rails.lower > proven:
            whole, proven = rails.prices, rails.lower
        if rails.lower * (1 + rails.gap) <= time:
            return replace(rails, prices=whole, lower=proven)
    # equal routings are merged
    kept_ways, kept_shares = [], []
    for listed, parts in zip(ways, shares, strict=True):
        merged: dict[tuple[object, ...], float] = {}
        for way, share in zip(listed, parts.tolist(), strict=True):
            if share > _LEAST_SHARE:
                merged[way.key] = merged.get(way.key, 0.0) + share
        by_key = {way.key: way for way in listed}
        kept_ways.append(tuple(by_key[key] for key in merged))
        kept_shares.append(np.array(list(merged.values())) / sum(merged.values()))
    return rings.GroupPacking(chosen, commodities, tuple(kept_ways), tuple(kept_shares), whole, proven)


def _best_prices(
    topology: Topology, groups: tuple[Group, ...], candidates: Sequence[rings.Floats], time: float
) -> NDArray[np.int64]:
    back = mates_of(topology)
    both = [(prices + prices[back]) / 2 for prices in candidates] if back is not None else []
    whole = [integer_prices(prices) for prices in (*candidates, *both)]
    best = max(whole, key=lambda prices: proven_time(topology, groups, prices.tolist()))
    if time <= float(proven_time(topology, groups, best.tolist())) * (1 + _BEHIND):
        return best
    of_groups = [prices_of_group(topology, group) for group in groups[:_MOST_BOUNDS]]
    return max([best, *of_groups], key=lambda prices: proven_time(topology, groups, prices.tolist()))


def prices_of_group(topology: Topology, group: Group) -> NDArray[np.int64]:
    """Return int64[links]: prices that prove the lower bound on the collective of `group` if it runs alone."""
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


def _master(
    commodities: Sequence[rings.Commodity], ways: Sequence[Sequence[rings.Routing]], widths: rings.Floats
) -> tuple[list[rings.Floats], rings.Floats, float]:
    """Solve the linear program over the known routings `ways`; return (fraction of each routing, link prices, time)."""
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
    flow, marginals = minimum(objective, matrix, bound, "plan fewer groups together")
    shares = np.split(np.maximum(flow[:-1], 0.0), np.cumsum(columns)[:-1])
    return list(shares), np.abs(marginals[:links]) / widths, float(flow[-1])


Column = NDArray[np.int64]
CHUNK_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
_NEARLY_BEST = Fraction(1001, 1000)


@dataclass(frozen=True, slots=True, eq=False)
class GroupSchedule:
    """The verified schedule of one group.

    network:  the network in which only the group's members are ranks
    verified: the group's schedule on `network`
    loads:    loads that this schedule causes on the links of the original network
    """

    group: Group
    network: GroupNetwork
    verified: VerifiedSchedule
    loads: rings.GroupLoads


@dataclass(frozen=True, slots=True, eq=False)
class SharedSchedules:
    """Schedules of all groups (`members`), which run at the same time on one network.

    time:   time that the busiest link needs for the data of all groups, in data / bandwidth
    lower:  lower bound on the time of any plan for all groups, in the same unit
    chunks: number of chunks per shard
    """

    topology: Topology
    members: tuple[GroupSchedule, ...]
    time: Fraction
    lower: Fraction
    chunks: int

    @property
    def gap(self) -> Fraction:
        return self.time / self.lower - 1


def shared_schedules(topology: Topology, packing: rings.GroupPacking, chunks: int | None = None) -> SharedSchedules:
    """Return verified schedules for all groups in `packing`, with `chunks` chunks per shard.

    Without `chunks`, several numbers are tried, and the smallest one that is nearly as fast as the best is chosen.

    Raises:
        CheckFailed: if the link loads of the verified schedules differ from those in the packing.
    """
    time, count = _in_chunks(topology, packing, CHUNK_COUNTS if chunks is None else (chunks,))
    members = tuple(_member(topology, packing, number, count) for number in range(len(packing.groups)))
    together = time_together(topology, [member.loads for member in members])
    if together != time:
        raise CheckFailed(
            "the schedules load links differently than planned: {}",
            f"{together} instead of {time}",
            "please report this",
        )
    return SharedSchedules(topology, members, together, packing.lower, count)


def loads_alone(topology: Topology, group: Group) -> list[rings.GroupLoads]:
    """Return the link loads of a plan in which `group` runs alone.

    The time may be up to 1/8 above the bound: a plan in closed form sends data within a box only over the box's own
    links, and sending them through NICs and other boxes as well would save less than 1/8 of the time.
    """
    packing = pack_groups(topology, [group], Fraction(1, 8))
    return list(rings.loads_of(topology, packing, _in_chunks(topology, packing, CHUNK_COUNTS)[1]))


def _in_chunks(topology: Topology, packing: rings.GroupPacking, counts: Sequence[int]) -> tuple[Fraction, int]:
    """Return (time, chunks per shard) for the first number of chunks in `counts` that is nearly as fast as the best."""
    times = []
    for each in counts:
        times.append((rings.busiest(topology, rings.loads_of(topology, packing, each))[0], each))
        if times[-1][0] <= packing.lower * _NEARLY_BEST:
            break
    best = min(time for time, _ in times)
    return next(pair for pair in times if pair[0] <= best * _NEARLY_BEST)


def time_together(topology: Topology, loads: Iterable[rings.GroupLoads]) -> Fraction:
    """Return the time that the busiest link needs for the loads of all groups, in data / bandwidth."""
    return rings.busiest(topology, loads)[0]


def _member(topology: Topology, packing: rings.GroupPacking, number: int, chunks: int) -> GroupSchedule:
    group = packing.groups[number]
    network = network_of_group(topology, group)
    topology, group = network.topology, packing.groups[number]
    numbers: dict[tuple[int, ...], int] = {}
    parts: list[tuple[Column, ...]] = []
    for index, commodity in enumerate(packing.commodities):
        if commodity.group != number:
            continue
        first = 0
        for way, count in zip(packing.ways[index], rings.counts_of(packing, index, chunks), strict=True):
            if count:
                route = np.array([numbers.setdefault(path, len(numbers)) for path in way.paths], dtype=np.int64)
                shards = _shards(group, commodity.root, way, (first, first + count), chunks)
                parts += [np.broadcast_arrays(way.depth, route, *each, way.reduces) for each in shards]
            first += count
    table = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.lexsort(table[4::-1])
    ranks, steps = topology.compute_count, 1 + int(table[0].max())
    bounds = ColumnBounds(steps, len(numbers), ranks * ranks if group.collective.is_alltoall else ranks, chunks)
    seen = network.link.tolist()
    paths = ([seen[link] for link in path] for path in numbers)
    schedule = Schedule(
        topology, group.collective, "pipelined", steps, chunks, bounds.pack([column[order] for column in table]),
        Routes.of_paths(paths), "groups", {"group": group.name},
    )  # fmt: skip
    rows, routes = schedule.transfers, schedule.routes
    moved = np.zeros(len(routes), dtype=np.int64)
    np.add.at(moved, rows.route, rows.hi.astype(np.int64) - rows.lo)
    loads = np.zeros(len(topology.links), dtype=np.int64)
    np.add.at(loads, routes.link_ids, np.repeat(moved, np.diff(routes.offsets)))
    return GroupSchedule(
        group, network, verify(schedule), rings.GroupLoads(group.amount * schedule.chunk_part, loads[network.link])
    )


def _shards(
    group: Group, root: int, way: rings.Routing, units: tuple[int, int], chunks: int
) -> Iterator[tuple[Column, int, int]]:
    """Yield (shard of each transfer, first chunk, last chunk + 1) for the range `units` of chunks of `root`'s data."""
    first, last = units
    if group.collective.is_alltoall:
        yield root * len(group.ranks) + way.target, first, last
    elif group.commodities > 1:
        yield np.array(root), first, last
    else:
        for shard in range(first // chunks, (last - 1) // chunks + 1):
            yield np.array(shard), max(0, first - shard * chunks), min(chunks, last - shard * chunks)
