"""Pairs of trees, one that collects sums and one that spreads results, on networks of any widths and abilities.

The first may branch at switches that add, the second at switches that multicast, each where prices of links are least.
They meet at a rank, or sums end at a switch that adds, from where results go to one that multicasts, the same or
another. By column generation over pairs, for small networks. Where every such root and all sets of switches were
compared at the end, no pairs are better.

On links that are as wide both ways, some best pairs go up and down the same tree, over switches that add and
multicast, and cost the same from every root: then trees of one root are compared, a link and the link back have one
price, and larger networks take part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import combinations, islice
from math import lcm
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.certificate import KIND, time_by_prices
from chorale.synth.bounds.tree_pairs import cheapest_tree, exact_vertex
from chorale.synth.errors import CheckFailed
from chorale.synth.linear_program import Floats, SparseMatrix, minimum, of_entries
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.methods.in_network.paired_trees import PairedTrees, ReversibleTrees
from chorale.synth.methods.in_network.splits import MAX_UNITS
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology

Column = dict[int, int]
"""By row of the program, how often a tree uses what the row limits."""
Item = TypeVar("Item")

_MOST_AT_ONCE = 12
_GAIN = 1e-7


@dataclass(slots=True, eq=False)
class ColumnProgram(Generic[Item]):
    """bound: of each row;  items, columns: trees, and what they use;  best: whether all trees were compared at the end
    offers: (prices of rows, whether to compare all) -> trees with their costs and columns
    """

    bound: Sequence[Fraction]
    offers: Callable[[Floats, bool], Iterable[tuple[float, Item, Column]]]
    compares_all: bool
    items: list[Item] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    is_best: bool = False

    def solved(self, enough: float, rounds: int) -> tuple[Floats, Floats]:
        """Return (rate of each item, price of each row), as good as `enough` or the best after so many rounds."""
        widths = np.array([float(value) for value in self.bound])
        scale = widths.max()
        self._add_cheap(1.0 / widths, np.inf, thorough=False)
        for _ in range(rounds):
            matrix = column_matrix(self.columns, len(widths))
            point, marginals = minimum(-np.ones(len(self.items)), matrix, widths / scale, "use trees of ranks alone")
            point, prices = np.maximum(0.0, point) * scale, np.maximum(0.0, -marginals)
            if point.sum() >= enough * (1 - 1e-9):
                return point, prices
            if self._add_cheap(prices, 1 - _GAIN, thorough=False):
                continue
            if not self.compares_all or not self._add_cheap(prices, 1 - _GAIN, thorough=True):
                self.is_best = self.compares_all
                return point, prices
        return np.pad(point, (0, len(self.items) - len(point))), prices

    def _add_cheap(self, prices: Floats, below: float, thorough: bool) -> bool:
        """Add the cheapest trees that cost less than `below`; return whether there is a new one."""
        cheap = sorted((each for each in self.offers(prices, thorough) if each[0] < below), key=lambda each: each[0])
        is_new = False
        for _, item, column in islice(cheap, _MOST_AT_ONCE):
            if column not in self.columns:
                self.items.append(item)
                self.columns.append(column)
                is_new = True
        return is_new

    def exact_rates(self, point: Floats) -> list[Fraction]:
        """Return rates that fit exactly: the vertex near `point`, or `point` rounded and slowed down."""
        rates = exact_vertex(column_matrix(self.columns, len(self.bound)), self.bound, point)
        if rates is None or sum(rates) < Fraction(float(point.sum())) * (1 - Fraction(1, 10**6)):
            rates = [Fraction(value).limit_denominator(2**17) for value in point.tolist()]
        load = [Fraction(0)] * len(self.bound)
        for rate, column in zip(rates, self.columns, strict=True):
            for row, count in column.items():
                load[row] += rate * count
        excess = max(value / width for value, width in zip(load, self.bound, strict=True))
        return [rate / max(Fraction(1), excess) for rate in rates]


def column_matrix(columns: Sequence[Column], rows: int) -> SparseMatrix:
    """Return float64[rows, columns]."""
    entries = [(row, index, count) for index, column in enumerate(columns) for row, count in column.items()]
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    return of_entries(row, column, value, rows, len(columns))


def price_certificate(topology: Topology, prices: Floats, sum_prices: Mapping[int, float]) -> Mapping[str, Any] | None:
    """Return the certificate of these prices of links and of sums at adders with a limit, in whole numbers.

    None where a check would compare too many trees.
    """
    switches = sorted(sum_prices)
    whole = integer_prices(np.append(prices, [sum_prices[switch] for switch in switches])).tolist()
    certificate = {
        "kind": KIND,
        "prices": whole[: len(prices)],
        "sum_prices": {topology.node_ids[s]: price for s, price in zip(switches, whole[len(prices) :], strict=True)},
    }
    try:
        time = time_by_prices(topology, certificate["prices"], certificate["sum_prices"])
    except CheckFailed:
        return None
    return certificate | {"time_per_byte": str(time)}


MAX_ACTORS, MAX_ACTORS_BOTH_WAYS = 40, 256
"""Ranks and switches that act, beyond which trees of every root, and of one root, take long."""
_MAX_WORK = 2**17
"""Trees that are made in all rounds together, nearly, times their nodes."""
MAX_TREES = 2**11
"""Sets of switches times roots that are all compared at the end."""
_LEAST_ROUNDS = 4
_ROUNDS_BOTH_WAYS, _ROUNDS_OF_MANY, _FEW_ACTORS = 300, 12, 64

Links = tuple[int, ...]


class PairEdge(NamedTuple):
    """An edge of a tree, from the node nearer to the root, and its links in the direction in which data go."""

    near: int
    far: int
    path: Links


Edges = tuple[PairEdge, ...]
_CostedTree = tuple[float, Edges]


@dataclass(frozen=True, slots=True)
class Pair:
    """A tree toward `root`, a rank or a switch that adds, and one from there."""

    root: int
    inward: Edges
    outward: Edges


@dataclass(frozen=True, slots=True, eq=False)
class PairPacking:
    """pairs, rates: a packing;  certificate: proof that no pairs are better, None where not all were compared"""

    pairs: list[Pair]
    rates: list[Fraction]
    certificate: Mapping[str, Any] | None

    @property
    def rate(self) -> Fraction:
        return sum(self.rates, Fraction(0))


def pair_packing(topology: Topology, enough: Fraction, mates: NDArray[np.int32] | None = None) -> PairPacking | None:
    """Return the packing, as good as `enough` or the best that was found; None for networks that are too large.

    mates: per link the link back, of the same width: pairs go up and down the same tree
    """
    links = topology.links
    names, row = np.unique(
        np.arange(len(links)) if mates is None else np.minimum(np.arange(len(links)), mates), return_inverse=True
    )
    search = _PairSearch.of(topology, row, mates is not None)
    actors = len(search.nodes)
    if actors > (MAX_ACTORS if mates is None else MAX_ACTORS_BOTH_WAYS):
        return None
    widths = [links.bandwidths[index] for index in links.bandwidth_class[names].tolist()]
    limits = {
        switch: limit for switch in search.adders if (limit := topology.abilities[switch].reduce_bandwidth) is not None
    }
    if mates is None:
        trees = (2 ** len(search.adders) + 2 ** len(search.copiers)) * actors
        per_round = actors**2 * (len(search.adders) + len(search.copiers) + 1)
        rounds = max(_LEAST_ROUNDS, _MAX_WORK // per_round)
    else:
        trees = 2 ** (len(search.adders) + 1)
        rounds = _ROUNDS_BOTH_WAYS if actors <= _FEW_ACTORS else _ROUNDS_OF_MANY
    program = ColumnProgram([*widths, *limits.values()], _Offers(search, list(limits), len(widths)), trees <= MAX_TREES)
    point, prices = program.solved(float(enough), rounds)
    certificate = None
    if program.is_best:
        sums = dict(zip(limits, prices[len(widths) :].tolist(), strict=True))
        certificate = price_certificate(topology, prices[row] / (1 if mates is None else 2), sums)
    pairs = (
        program.items if mates is None else [_there_and_back(topology, pair.outward, mates) for pair in program.items]
    )
    return PairPacking(pairs, program.exact_rates(point), certificate)


def _there_and_back(topology: Topology, tree: Edges, mates: NDArray[np.int32]) -> Pair:
    """Return the pair that goes up and down `tree`, from the rank from which it is lowest."""
    edges: dict[int, list[PairEdge]] = {}
    for edge in tree:
        edges.setdefault(edge.near, []).append(edge)
        edges.setdefault(edge.far, []).append(PairEdge(edge.far, edge.near, _turned(edge.path, mates)))

    def outward(root: int) -> tuple[int, list[PairEdge]]:
        step, waiting, order = {root: 0}, [root], list[PairEdge]()
        for node in waiting:
            for edge in edges[node]:
                if edge.far not in step:
                    step[edge.far] = step[node] + (edge.far < topology.compute_count)
                    order.append(edge)
                    waiting.append(edge.far)
        return max(step.values()), order

    _, root = min((outward(root)[0], root) for root in range(topology.compute_count))
    down = tuple(outward(root)[1])
    return Pair(root, tuple(edge._replace(path=_turned(edge.path, mates)) for edge in down), down)


def _turned(path: Links, mates: NDArray[np.int32]) -> Links:
    return tuple(int(mates[link]) for link in reversed(path))


@dataclass(frozen=True, slots=True, eq=False)
class _PairSearch:
    """nodes: ranks, then switches that act;  leaving: per node, (next node, link) of each link out of it

    row: per link, the row of the program that limits it;  is_both_ways: the same trees go up and down
    ends: nodes that no path leads through: ranks, and of trees both ways the switches that act without a limit
    """

    topology: Topology
    nodes: list[int]
    adders: list[int]
    copiers: list[int]
    leaving: list[list[tuple[int, int]]]
    row: NDArray[np.int64]
    is_both_ways: bool
    ends: frozenset[int]

    @staticmethod
    def of(topology: Topology, row: NDArray[np.int64], is_both_ways: bool) -> _PairSearch:
        abilities = sorted(topology.abilities.items())
        if is_both_ways:
            abilities = [(node, ability) for node, ability in abilities if ability.reduce and ability.multicast]
        leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        for index, link in enumerate(topology.links):
            if link.src != link.dst:
                leaving[link.src].append((link.dst, index))
        ranks = range(topology.compute_count)
        unlimited = [node for node, ability in abilities if is_both_ways and ability.reduce_bandwidth is None]
        return _PairSearch(
            topology,
            [*ranks, *(node for node, _ in abilities)],
            [node for node, ability in abilities if ability.reduce],
            [node for node, ability in abilities if ability.multicast],
            leaving,
            row,
            is_both_ways,
            frozenset([*ranks, *unlimited]),
        )

    def paths(self, price: Floats) -> _Paths:
        """Return cheapest paths between all that act, which lead through other switches."""
        place = {node: index for index, node in enumerate(self.nodes)}
        cost = np.full((len(self.nodes), len(self.nodes)), np.inf)
        came = []
        for index, source in enumerate(self.nodes):
            best, before = self._from(source, price)
            came.append(before)
            for node, value in best.items():
                if node in place:
                    cost[index, place[node]] = value
        return _Paths(place, cost, came)

    def _from(self, source: int, price: Floats) -> tuple[dict[int, float], dict[int, tuple[int, int]]]:
        best, before = {source: 0.0}, dict[int, tuple[int, int]]()
        waiting = [(0.0, source)]
        while waiting:
            cost, node = heappop(waiting)
            if cost > best[node] or (node != source and node in self.ends):
                continue
            for other, link in self.leaving[node]:
                further = cost + float(price[link])
                if further < best.get(other, np.inf):
                    best[other], before[other] = further, (node, link)
                    heappush(waiting, (further, other))
        return best, before


class _Paths(NamedTuple):
    """place: of each node that acts;  cost: from each to each;  came: (node, link) before each."""

    place: dict[int, int]
    cost: Floats
    came: list[dict[int, tuple[int, int]]]

    def links(self, start: int, end: int) -> Links:
        links: list[int] = []
        while end != start:
            end, link = self.came[self.place[start]][end]
            links.append(link)
        return tuple(reversed(links))


@dataclass(frozen=True, slots=True, eq=False)
class _Offers:
    """Cheap pairs. limited: adders with a limit, whose rows follow the `rows` of links."""

    search: _PairSearch
    limited: list[int]
    rows: int

    def __call__(self, prices: Floats, thorough: bool) -> Iterator[tuple[float, Pair, Column]]:
        """Yield the cheapest pair of each root, with its cost and column; of one root, several."""
        search = self.search
        paths = search.paths(prices[search.row])
        extra = dict(zip(self.limited, prices[self.rows :].tolist(), strict=True))
        choose = _trees_of_all if thorough else _trees_nearby

        def inward(root: int) -> _CostedTree:
            costs = _TreeCosts(search, paths, root, True, extra)
            return min(choose(costs, search.adders), key=lambda each: each[0])

        def outward(root: int) -> _CostedTree:
            costs = _TreeCosts(search, paths, root, False, {})
            return min(choose(costs, search.copiers), key=lambda each: each[0])

        if search.is_both_ways:
            trees = choose(_TreeCosts(search, paths, 0, False, extra), search.copiers)
            offered: Iterator[tuple[float, Pair]] = ((cost, Pair(0, (), tree)) for cost, tree in trees)
        else:
            offered = _joined(search, paths, inward, outward)
        for cost, pair in offered:
            if np.isfinite(cost):
                yield cost, pair, self._column(pair)

    def _column(self, pair: Pair) -> Column:
        column: Column = {}
        for edge in (*pair.inward, *pair.outward):
            for link in edge.path:
                row = int(self.search.row[link])
                column[row] = column.get(row, 0) + 1
        summed = pair.outward if self.search.is_both_ways else pair.inward
        for index, switch in enumerate(self.limited):
            if sum(edge.near == switch for edge in summed) > 1:
                column[self.rows + index] = 1
        return column


def _joined(
    search: _PairSearch, paths: _Paths, inward: Callable[[int], _CostedTree], outward: Callable[[int], _CostedTree]
) -> Iterator[tuple[float, Pair]]:
    """Yield pairs and costs: of each rank as the root, and of each switch that adds with the best one that copies."""
    for root in range(search.topology.compute_count):
        (cost_in, trees_in), (cost_out, trees_out) = inward(root), outward(root)
        yield cost_in + cost_out, Pair(root, trees_in, trees_out)
    spread = {switch: outward(switch) for switch in search.copiers if search.adders}
    for adder in search.adders if spread else ():
        cost_in, trees_in = inward(adder)
        between = {switch: float(paths.cost[paths.place[adder], paths.place[switch]]) for switch in spread}
        start = min(spread, key=lambda switch: spread[switch][0] + between[switch])
        cost_out, trees_out = spread[start]
        if start != adder and np.isfinite(between[start]):
            trees_out = (PairEdge(adder, start, paths.links(adder, start)), *trees_out)
        yield cost_in + between[start] + cost_out, Pair(adder, trees_in, trees_out)


@dataclass(frozen=True, slots=True, eq=False)
class _TreeCosts:
    """Trees toward (`is_inward`) or from a root, at prices of paths and of sums at adders with a limit."""

    search: _PairSearch
    paths: _Paths
    root: int
    is_inward: bool
    extra: Mapping[int, float]

    def tree(self, chosen: Sequence[int]) -> _CostedTree:
        """Return the cheapest tree over all ranks and `chosen`, without switches that end it, and its cost."""
        ranks = self.search.topology.compute_count
        nodes = [*range(ranks), *sorted({*chosen, self.root} - {*range(ranks)})]
        places = [self.paths.place[node] for node in nodes]
        outward = self.paths.cost.T if self.is_inward else self.paths.cost
        cost = outward[np.ix_(places, places)]
        make = spanning_tree if self.search.is_both_ways else cheapest_tree
        parent = make(cost, nodes.index(self.root)).tolist()
        pairs = [(nodes[above], nodes[place]) for place, above in enumerate(parent) if above >= 0]
        if any(np.isinf(outward[self.paths.place[near], self.paths.place[far]]) for near, far in pairs):
            return np.inf, ()
        while leaves := {far for _, far in pairs if far >= ranks} - {near for near, _ in pairs}:
            pairs = [pair for pair in pairs if pair[1] not in leaves]
        value = sum(float(outward[self.paths.place[near], self.paths.place[far]]) for near, far in pairs)
        for switch, price in self.extra.items():
            value += price if sum(near == switch for near, _ in pairs) > 1 else 0.0
        ends = [(far, near) if self.is_inward else (near, far) for near, far in pairs]
        return value, tuple(PairEdge(*pair, self.paths.links(*way)) for pair, way in zip(pairs, ends, strict=True))


def _trees_nearby(costs: _TreeCosts, switches: Sequence[int]) -> Iterator[_CostedTree]:
    """Yield cheap trees: from no switch and from all, switches are added or left out while that pays."""
    for start in ((), switches):
        chosen, value = set(start), costs.tree(tuple(start))
        is_better = True
        while is_better:
            is_better = False
            for switch in switches:
                other = costs.tree(tuple(chosen ^ {switch}))
                if other[0] < value[0] - 1e-12:
                    chosen ^= {switch}
                    value, is_better = other, True
        yield value


def _trees_of_all(costs: _TreeCosts, switches: Sequence[int]) -> Iterator[_CostedTree]:
    """Yield the cheapest tree over each set of switches: the cheapest of all trees is among them."""
    for size in range(len(switches) + 1):
        yield from map(costs.tree, combinations(switches, size))


def spanning_tree(cost: Floats, root: int) -> NDArray[np.int64]:
    """Return int64[nodes], the parents in a cheapest tree from `root` where costs are the same both ways, -1 for it.

    Prim's algorithm, which is much faster there than `cheapest_tree`. O(nodes ^ 2).
    """
    best, parent = cost[root].copy(), np.full(len(cost), root, dtype=np.int64)
    outside = np.ones(len(cost), dtype=np.bool_)
    outside[root], parent[root] = False, -1
    for _ in range(len(cost) - 1):
        others = np.flatnonzero(outside)
        child = int(others[np.argmin(best[others])])
        outside[child] = False
        closer = outside & (cost[child] < best)
        best[closer], parent[closer] = cost[child][closer], child
    return parent


def pairs_of_packing(packing: PairPacking, units: int | None) -> PairedTrees:
    """Return the packing with whole units; about `units` units if given."""
    exact = lcm(*(rate.denominator for rate in packing.rates))
    scale = Fraction(exact) if units is None and exact * packing.rate <= MAX_UNITS else (units or 2**17) / packing.rate
    weights = [int(rate * scale) for rate in packing.rates]
    if not any(weights):
        weights[packing.rates.index(max(packing.rates))] = 1
    used = [(pair, weight) for pair, weight in zip(packing.pairs, weights, strict=True) if weight]
    roots, kept = [pair.root for pair, _ in used], [weight for _, weight in used]
    return PairedTrees(
        _trees(roots, kept, [pair.inward for pair, _ in used]), _trees(roots, kept, [pair.outward for pair, _ in used])
    )


def _trees(roots: Sequence[int], weights: Sequence[int], trees: Sequence[Edges]) -> ReversibleTrees:
    columns: list[tuple[int, int, int, int, int, int]] = []
    paths: list[Links] = []
    before = 0
    for number, (weight, edges) in enumerate(zip(weights, trees, strict=True)):
        for edge in edges:
            columns.append((number, edge.near, edge.far, len(paths), before, before + weight))
            paths.append(edge.path)
        before += weight
    tree, near, far, route, lo, hi = np.array(columns, dtype=np.int64).T
    return ReversibleTrees(np.array(roots), np.array(weights), tree, near, far, route, lo, hi, Routes.of_paths(paths))
