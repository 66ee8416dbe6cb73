"""Tokens that several ranks get, as in mixtures of experts: copied where they arrive, and summed up on the way back.

On boxes with rails a token crosses to another box once and is copied there; NICs are balanced as in
`chorale.synth.methods.traffic.two_level`. On other networks tokens follow trees of shortest paths, and ranks copy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.collective import CollectiveName, uneven_collective
from chorale.synth.errors import InvalidInput
from chorale.synth.methods.alltoall.linear_program import commodities_of
from chorale.synth.methods.traffic.fabric import RailFabric, ShortestPaths, rail_fabric
from chorale.synth.methods.traffic.planner import plan_amounts
from chorale.synth.methods.traffic.tokens import TokenRouting
from chorale.synth.methods.traffic.two_level import split_amounts
from chorale.synth.schedule.schedule import MAX_CHUNKS, ColumnBounds, Parameter, Routes, Schedule
from chorale.synth.topology.boxes import boxes_of
from chorale.synth.topology.topology import Topology

Numbers = NDArray[np.int64]

MAX_SHARDS = 2**18
_TOKEN_PARTS = 16
_CLOSE = Fraction(1, 100)


class Edges(NamedTuple):
    """Row i: chunks `lo` to `hi - 1` of `shard` go from rank `sender` to `receiver`, `depth` edges after the source."""

    shard: Numbers
    lo: Numbers
    hi: Numbers
    sender: Numbers
    receiver: Numbers
    depth: Numbers


PathOf = Callable[[int, int], tuple[int, ...]]


class CutBound(NamedTuple):
    """time: no plan is faster, in amount / bandwidth;  inside: the nodes of the cut that proves it."""

    time: Fraction
    inside: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class DispatchPlan:
    """Trees along which tokens spread: every rank gets each chunk of a token at most once.

    edges: in parts of an amount, `parts` to a unit;  routes: paths of links;  pair: the route of each edge
    uncopied_time: what the plan takes in which sources send every copy
    time:  the busiest link needs it, in amount / bandwidth;  method: `two level`, `shortest paths` or `no copies`
    """

    topology: Topology
    routing: TokenRouting
    edges: Edges
    routes: Routes
    pair: Numbers
    bound: CutBound
    method: str
    parts: int = 1
    uncopied_time: Fraction = Fraction(0)
    time: Fraction = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "time", self._time(self.routes))

    @property
    def gap(self) -> Fraction:
        """Time above the bound, relative to the bound: 0 is optimal."""
        return self.time / self.bound.time - 1

    @property
    def combine_time(self) -> Fraction:
        """Return the time of the way back, over the reverse of every link."""
        return self._time(reverse_routes(self.topology, self.routes))

    def _time(self, routes: Routes) -> Fraction:
        amounts = np.zeros(len(routes), dtype=np.int64)
        np.add.at(amounts, self.pair, self.edges.hi - self.edges.lo)
        loads = np.zeros(len(self.topology.links), dtype=np.int64)
        np.add.at(loads, routes.link_ids, np.repeat(amounts, np.diff(routes.offsets)))
        return self.topology.links.longest_time(loads) / self.parts

    def schedule(self, combine: bool = False) -> Schedule:
        """Return the schedule of the dispatch or of the combine, which runs the dispatch backwards. Not verified.

        Raises InvalidInput for more than `MAX_SHARDS` shards, and for a combine without reverse links.
        """
        routing = self.routing
        if len(routing.source) > MAX_SHARDS:
            rule = f"a schedule must have at most {MAX_SHARDS} groups of tokens with the same ranks"
            raise InvalidInput(rule, len(routing.source), "route fewer tokens at a time")
        amount = routing.amount * self.parts
        chunk = int(np.gcd.reduce(np.concatenate([amount, self.edges.lo, self.edges.hi])))
        sizes = amount // chunk
        if int(sizes.max()) > MAX_CHUNKS:
            raise InvalidInput(f"a shard must have at most {MAX_CHUNKS} chunks", int(sizes.max()), "use a larger unit")
        name = CollectiveName.COMBINE if combine else CollectiveName.DISPATCH
        collective = uneven_collective(name, sizes.tolist(), routing.members())
        steps, most = int(self.edges.depth.max()) + 1, int(sizes.max())
        routes = reverse_routes(self.topology, self.routes) if combine else self.routes
        bounds = ColumnBounds(steps, len(routes), len(sizes), most)
        depth = steps - 1 - self.edges.depth if combine else self.edges.depth
        adds = np.full(len(depth), combine, dtype=np.uint8)
        columns = depth, self.pair, self.edges.shard, self.edges.lo // chunk, self.edges.hi // chunk, adds
        order = np.lexsort((self.edges.lo, self.edges.shard, depth))
        transfers = bounds.pack([column[order] for column in columns])
        parameters: dict[str, Parameter] = {"solver": self.method, "traffic": routing.name}
        certificate = self.certificate(Fraction(chunk, self.parts), combine)
        return Schedule(
            self.topology, collective, "pipelined", steps, most, transfers, routes, "alltoall", parameters, certificate
        )

    def certificate(self, chunk: Fraction = Fraction(1), combine: bool = False) -> Mapping[str, Any]:
        """Return the claim that no plan needs less time than the bound, in units of `chunk` amounts."""
        nodes = np.zeros(self.topology.node_count, dtype=np.bool_)
        nodes[list(self.bound.inside)] = True
        time = self.bound.time / chunk
        if combine:
            time *= _width(self.topology, nodes) / _width(self.topology, ~nodes)
            nodes = ~nodes
        return {"kind": "copies-cut", "inside": np.flatnonzero(nodes).tolist(), "time_lower": str(time)}


def reverse_routes(topology: Topology, routes: Routes) -> Routes:
    """Return each route backwards, over the reverse of each link. Raises InvalidInput if one has no reverse."""
    links, index = topology.links, topology.links.parallel_index().tolist()
    ends = list(zip(links.src.tolist(), links.dst.tolist(), index, strict=True))
    number = {key: link for link, key in enumerate(ends)}
    back = np.array([number.get((dst, src, nth), -1) for src, dst, nth in ends], dtype=np.int64)
    offsets = routes.offsets
    mirror = np.repeat(offsets[:-1] + offsets[1:] - 1, np.diff(offsets)) - np.arange(offsets[-1])
    reverse = back[routes.link_ids[mirror]]
    if len(reverse) and int(reverse.min()) < 0:
        rule = "sums go back over the reverse of each link"
        raise InvalidInput(rule, f"{topology.spec} has links without a reverse", "plan the dispatch alone")
    return Routes(offsets, reverse.astype(np.int32))


def plan_dispatch(topology: Topology, routing: TokenRouting) -> DispatchPlan:
    """Return a plan of `routing` on `topology`, and a bound by cuts around ranks and boxes. Deterministic."""
    if routing.ranks != topology.compute_count:
        rule = f"a routing must be for the {topology.compute_count} ranks of {topology.spec}"
        raise InvalidInput(rule, f"{routing.ranks} ranks in {routing.name}", "choose a routing or a network that fits")
    bound, fabric = _bound_by_cuts(topology, routing), rail_fabric(topology)
    plans = [_uncopied(topology, routing, bound)]
    if fabric is None:
        edges, path = _along_shortest_paths(topology, routing)
        plans.append(_plan(topology, routing, edges, path, bound, "shortest paths"))
    else:
        plans += _rail_plans(fabric, routing, bound)
    return replace(min(plans, key=lambda plan: plan.time), uncopied_time=plans[0].time)


def _rail_plans(fabric: RailFabric, routing: TokenRouting, bound: CutBound) -> list[DispatchPlan]:
    """Return a plan with whole tokens, and if that is not close to the bound, one with tokens in parts."""
    unit, plans, path = int(np.gcd.reduce(routing.amount)), [], partial(_rail_path, fabric)
    for parts in (1, _TOKEN_PARTS):
        edges = _over_rails(fabric, replace(routing, amount=routing.amount // unit * parts), bound.time / unit * parts)
        edges = edges._replace(lo=edges.lo * unit, hi=edges.hi * unit)
        plans.append(_plan(fabric.topology, routing, edges, path, bound, "two level", parts))
        if plans[-1].gap < _CLOSE:
            break
    return plans


def _plan(
    topology: Topology,
    routing: TokenRouting,
    edges: Edges,
    path: PathOf,
    bound: CutBound,
    method: str,
    parts: int = 1,
) -> DispatchPlan:
    key = edges.sender * routing.ranks + edges.receiver
    pairs = np.unique(key)
    routes = Routes.of_paths(path(*divmod(pair, routing.ranks)) for pair in pairs.tolist())
    return DispatchPlan(topology, routing, edges, routes, np.searchsorted(pairs, key), bound, method, parts)


def _uncopied(topology: Topology, routing: TokenRouting, bound: CutBound) -> DispatchPlan:
    """Return the plan in which the source sends each target its own copy, as an all-to-all of given sizes does."""
    plan = plan_amounts(topology, routing.without_copies())
    paths, shard, source = plan.paths(), routing.shard, routing.source
    chunk, parts = plan.chunks.chunk.numerator, plan.chunks.chunk.denominator
    away = np.flatnonzero(routing.targets != source[shard])
    key, amount = source[shard[away]] * routing.ranks + routing.targets[away], routing.amount[shard[away]] * parts
    order = np.lexsort((paths.lo, paths.target, paths.source))
    of_paths = paths.source[order] * routing.ranks + paths.target[order]
    of_away, piece, lo, hi = _matched(key, amount, of_paths, paths.amount[order] * chunk)
    entry, zero = away[of_away], np.zeros(len(lo), dtype=np.int64)
    edges = Edges(shard[entry], lo, hi, source[shard[entry]], routing.targets[entry], zero)
    routes = Routes(paths.offsets.astype(np.int64), paths.links.astype(np.int32))
    return DispatchPlan(topology, routing, edges, routes, order[piece], bound, "no copies", parts)


def _rail_path(fabric: RailFabric, sender: int, receiver: int) -> tuple[int, ...]:
    if fabric.box[sender] == fabric.box[receiver]:
        return fabric.lane(sender, receiver)
    return (*fabric.nic_links[0][sender], *fabric.nic_links[1][receiver])


def _over_rails(fabric: RailFabric, routing: TokenRouting, least: Fraction) -> Edges:
    """Return the edges: to relays in the box of the source, over NICs to other boxes, and to the targets there."""
    box, ranks = fabric.box.astype(np.int64), routing.ranks
    shard, source, targets = routing.shard, routing.source, routing.targets
    near = (box[targets] == box[source[shard]]) & (targets != source[shard])
    star = _edges(shard[near], routing.amount, source[shard[near]], targets[near])
    far = np.flatnonzero(box[targets] != box[source[shard]])
    if not len(far):
        return star
    # One crossing for each shard and box; its representative is one of its targets there, by turns.
    order = far[np.lexsort((targets[far], box[targets[far]], shard[far]))]
    first = np.flatnonzero(np.diff(shard[order] * len(fabric.members) + box[targets[order]], prepend=-1))
    count = np.diff(np.append(first, len(order)))
    agent = targets[order[first + np.arange(len(first)) % count]]
    row = shard[order[first]]
    amounts = np.zeros((ranks, ranks), dtype=np.int64)
    np.add.at(amounts, (source[row], agent), routing.amount[row])
    pieces = split_amounts(fabric, amounts, least)
    of_pieces = pieces.source.astype(np.int64) * ranks + pieces.target
    crossing, piece, lo, hi = _matched(source[row] * ranks + agent, routing.amount[row], of_pieces, pieces.amount)
    sender, receiver = pieces.sender[piece].astype(np.int64), pieces.receiver[piece].astype(np.int64)
    via = sender != source[row[crossing]]
    relayed = _to_relays(row[crossing[via]], lo[via], hi[via], sender[via], star, routing)
    across = Edges(row[crossing], lo, hi, sender, receiver, via.astype(np.int64))
    copies = np.repeat(np.arange(len(crossing)), count[crossing])
    place = np.arange(len(copies)) - np.repeat(np.cumsum(count[crossing]) - count[crossing], count[crossing])
    target = targets[order[first[crossing[copies]] + place]]
    there = target != receiver[copies]
    copies, target = copies[there], target[there]
    shards, begins, ends = (column[copies] for column in (across.shard, lo, hi))
    spread = Edges(shards, begins, ends, receiver[copies], target, across.depth[copies] + 1)
    return Edges(*(np.concatenate(columns) for columns in zip(star, relayed, across, spread, strict=True)))


def _edges(shard: Numbers, amount: Numbers, sender: Numbers, receiver: Numbers) -> Edges:
    zero = np.zeros(len(shard), dtype=np.int64)
    return Edges(shard, zero, amount[shard], sender, receiver, zero)


def _matched(
    key: Numbers, amount: Numbers, piece_key: Numbers, piece_amount: Numbers
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Cut crossings and pieces at each other's ends; both have the same amount for each key, a pair of ranks.

    Returns the crossing and the piece of each part, and the interval of the crossing that it is.
    """
    by_key = np.argsort(key, kind="stable")
    of_piece = np.argsort(piece_key, kind="stable")
    ends, piece_ends = np.cumsum(amount[by_key]), np.cumsum(piece_amount[of_piece])
    end = np.unique(np.concatenate([ends, piece_ends]))
    begin = np.concatenate([[0], end[:-1]])
    crossing = np.searchsorted(ends, begin, side="right")
    piece = of_piece[np.searchsorted(piece_ends, begin, side="right")]
    start = ends[crossing] - amount[by_key[crossing]]
    return by_key[crossing], piece, begin - start, end - start


def _to_relays(row: Numbers, lo: Numbers, hi: Numbers, relay: Numbers, star: Edges, routing: TokenRouting) -> Edges:
    """Return what sources send to relays that do not get it anyway: once, even if it goes on to several boxes."""
    key = row * routing.ranks + relay
    anew = np.flatnonzero(~np.isin(key, star.shard * routing.ranks + star.receiver))
    order = anew[np.lexsort((lo[anew], key[anew]))]
    if not len(order):
        return Edges(*(order for _ in Edges._fields))
    key, lo, hi = key[order], lo[order], hi[order]
    begin = np.cumsum(np.diff(key, prepend=key[0]) != 0) * (int(routing.amount.max()) + 1)  # keys lie apart
    reached = np.maximum.accumulate(begin + hi)
    first = np.flatnonzero(np.append(True, begin[1:] + lo[1:] > reached[:-1]))
    last = np.append(first[1:], len(key)) - 1
    shard, receiver = np.divmod(key[first], routing.ranks)
    depth = np.zeros(len(first), dtype=np.int64)
    return Edges(shard, lo[first], reached[last] - begin[last], routing.source[shard], receiver, depth)


def _along_shortest_paths(topology: Topology, routing: TokenRouting) -> tuple[Edges, PathOf]:
    """Return trees of shortest paths; a rank on the way of others copies. O(ranks^2 + shards * ranks)."""
    problem = commodities_of(topology, symmetric=False)
    paths, ranks = ShortestPaths(problem), routing.ranks
    route: dict[tuple[int, int], tuple[int, ...]] = {}
    parts: list[Edges] = []
    for source in np.unique(routing.source).tolist():
        shards = np.flatnonzero(routing.source == source)
        needs = np.zeros((len(shards), ranks), dtype=np.bool_)
        of_source = np.flatnonzero(np.isin(routing.shard, shards))
        needs[np.searchsorted(shards, routing.shard[of_source]), routing.targets[of_source]] = True
        depth = np.zeros(ranks, dtype=np.int64)
        parent = np.full(ranks, -1, dtype=np.int64)
        order = np.argsort(paths.hops[source, :ranks], kind="stable").tolist()
        for rank in order[1:]:
            node, links = rank, []
            while node == rank or node >= ranks:
                links.append(int(problem.link_ids[paths.parents[source, node]]))
                node = int(problem.src[paths.parents[source, node]])
            parent[rank], depth[rank] = node, depth[node] + 1
            route.setdefault((node, rank), tuple(links[::-1]))
        for rank in order[:0:-1]:
            needs[:, parent[rank]] |= needs[:, rank]
        needs[:, source] = False
        of_shard, rank_of = np.nonzero(needs)
        shard = shards[of_shard]
        parts.append(_edges(shard, routing.amount, parent[rank_of], rank_of)._replace(depth=depth[rank_of] - 1))
    edges = Edges(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    return edges, lambda sender, receiver: route[sender, receiver]


class Cut(NamedTuple):
    """time: what crosses needs it, in amount / bandwidth;  ranks: on one side;  is_out: whether it leaves them."""

    time: Fraction
    ranks: tuple[int, ...]
    is_out: bool


def cuts_of(topology: Topology, routing: TokenRouting) -> list[Cut]:
    """Return the cuts around each rank and each box, outward and inward. O(targets + ranks)."""
    shard, cuts = routing.shard, []
    for group, widths in _groups(topology):
        own, there = group[routing.source], group[routing.targets]
        leaves = np.zeros(len(own), dtype=np.bool_)
        leaves[shard[there != own[shard]]] = True
        entering = np.unique((shard * len(widths) + there)[there != own[shard]])
        out, into = np.zeros(len(widths), dtype=np.int64), np.zeros(len(widths), dtype=np.int64)
        np.add.at(out, own[leaves], routing.amount[leaves])
        np.add.at(into, entering % len(widths), routing.amount[entering // len(widths)])
        for number, (ranks, *both) in enumerate(widths):
            amounts = int(out[number]), int(into[number])
            for amount, width, is_out in zip(amounts, both, (True, False), strict=True):
                cuts.append(Cut(amount / width, ranks, is_out))
    return cuts


@lru_cache(maxsize=16)
def _groups(topology: Topology) -> list[tuple[Numbers, list[tuple[tuple[int, ...], Fraction, Fraction]]]]:
    """Return the rank of each rank, and the box of each, with the ranks of each group and its bandwidth out and in."""
    box = np.array(boxes_of(topology), dtype=np.int64)
    groups = []
    for group in (np.arange(len(box)), box) if box.any() else (np.arange(len(box)),):
        widths = []
        for number in range(int(group.max()) + 1):
            ranks = np.flatnonzero(group == number)
            inside = _with_switches(topology, ranks)
            widths.append((tuple(ranks.tolist()), _width(topology, inside), _width(topology, ~inside)))
        groups.append((group, widths))
    return groups


def _bound_by_cuts(topology: Topology, routing: TokenRouting) -> CutBound:
    cut = max(cuts_of(topology, routing), key=lambda one: one.time)
    inside = _with_switches(topology, np.array(cut.ranks))
    return CutBound(cut.time, tuple(np.flatnonzero(inside if cut.is_out else ~inside).tolist()))


def _width(topology: Topology, nodes: NDArray[np.bool_]) -> Fraction:
    """Return the bandwidth of all links from `nodes`, bool[nodes], to others."""
    links = topology.links
    crossing = links.bandwidth_class[nodes[links.src] & ~nodes[links.dst]]
    return sum((links.bandwidths[number] for number in crossing.tolist()), Fraction(0))


def _with_switches(topology: Topology, ranks: Numbers) -> NDArray[np.bool_]:
    """Return bool[nodes]: `ranks`, and the switches that are linked to nothing else."""
    inside = np.zeros(topology.node_count, dtype=np.bool_)
    inside[ranks] = True
    links, switches = topology.links, np.arange(topology.node_count) >= topology.compute_count
    outside = np.zeros(topology.node_count, dtype=np.bool_)
    outside[links.dst[~inside[links.src]]] = True
    outside[links.src[~inside[links.dst]]] = True
    return inside | (switches & ~outside)
