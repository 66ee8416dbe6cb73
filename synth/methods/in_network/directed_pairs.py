"""Pairs of trees, one that collects sums and one that spreads results, on networks of any widths and abilities.

The first may branch at switches that add, the second at switches that multicast, each where prices of links are least.
They meet at a rank, or sums end at a switch that adds, from where results go to one that multicasts, the same or
another. By column generation over pairs, for small networks. Where every such root and all sets of switches were
compared at the end, no pairs are better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import combinations
from math import lcm
from typing import Any, NamedTuple

import numpy as np

from chorale.synth.bounds.cheapest_tree import cheapest_tree
from chorale.synth.methods.in_network.column_program import Column, ColumnProgram
from chorale.synth.methods.in_network.pair_schedule import PairedTrees
from chorale.synth.methods.in_network.price_proof import price_certificate
from chorale.synth.methods.in_network.reversible_trees import ReversibleTrees
from chorale.synth.methods.in_network.tree_packing import MAX_UNITS
from chorale.synth.schedule.schedule import Routes
from chorale.synth.sparse_matrix import Floats
from chorale.synth.topology.topology import Topology

MAX_ACTORS = 40
"""Ranks and switches that act, beyond which trees of every root take long."""
_MAX_WORK = 2**17
"""Trees that are made in all rounds together, nearly, times their nodes."""
MAX_TREES = 2**11
"""Sets of switches times roots that are all compared at the end."""
_LEAST_ROUNDS = 4

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


def pair_packing(topology: Topology, enough: Fraction) -> PairPacking | None:
    """Return the packing, as good as `enough` or the best that was found; None for networks that are too large."""
    search = _PairSearch.of(topology)
    if len(search.nodes) > MAX_ACTORS:
        return None
    links = topology.links
    limits = {
        switch: limit for switch in search.adders if (limit := topology.abilities[switch].reduce_bandwidth) is not None
    }
    widths = [links.bandwidths[index] for index in links.bandwidth_class.tolist()]
    sets = 2 ** len(search.adders) + 2 ** len(search.copiers)
    offers = _Offers(search, list(limits))
    program = ColumnProgram([*widths, *limits.values()], offers, sets * len(search.nodes) <= MAX_TREES)
    per_round = len(search.nodes) ** 2 * (len(search.adders) + len(search.copiers) + 1)
    point, prices = program.solved(float(enough), max(_LEAST_ROUNDS, _MAX_WORK // per_round))
    certificate = None
    if program.is_best:
        sums = dict(zip(limits, prices[len(widths) :].tolist(), strict=True))
        certificate = price_certificate(topology, prices[: len(widths)], sums)
    return PairPacking(program.items, program.exact_rates(point), certificate)


@dataclass(frozen=True, slots=True, eq=False)
class _PairSearch:
    """nodes: ranks, then switches that act;  leaving: per node, (next node, link) of each link out of it"""

    topology: Topology
    nodes: list[int]
    adders: list[int]
    copiers: list[int]
    leaving: list[list[tuple[int, int]]]

    @staticmethod
    def of(topology: Topology) -> _PairSearch:
        able = sorted(topology.abilities)
        leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        for index, link in enumerate(topology.links):
            if link.src != link.dst:
                leaving[link.src].append((link.dst, index))
        return _PairSearch(
            topology,
            [*range(topology.compute_count), *able],
            [node for node in able if topology.abilities[node].reduce],
            [node for node in able if topology.abilities[node].multicast],
            leaving,
        )

    def paths(self, price: Floats) -> _Paths:
        """Return cheapest paths between all that act. Inside them any switch passes on."""
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
        best, before, ranks = {source: 0.0}, dict[int, tuple[int, int]](), self.topology.compute_count
        waiting = [(0.0, source)]
        while waiting:
            cost, node = heappop(waiting)
            if cost > best[node] or (node != source and node < ranks):
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
    """Cheap pairs. limited: adders with a limit, whose rows follow those of links."""

    search: _PairSearch
    limited: list[int]

    def __call__(self, prices: Floats, thorough: bool) -> Iterator[tuple[float, Pair, Column]]:
        """Yield the cheapest pair of each root, with its cost and column."""
        search, links = self.search, len(self.search.topology.links)
        paths = search.paths(prices[:links])
        extra = dict(zip(self.limited, prices[links:].tolist(), strict=True))
        choose = _cheapest_of_all if thorough else _cheapest_nearby

        def inward(root: int) -> _CostedTree:
            return choose(_TreeCosts(search.topology, paths, root, True, extra), search.adders)

        def outward(root: int) -> _CostedTree:
            return choose(_TreeCosts(search.topology, paths, root, False, {}), search.copiers)

        for cost, pair in _joined(search, paths, inward, outward):
            if np.isfinite(cost):
                yield cost, pair, self._column(pair)

    def _column(self, pair: Pair) -> Column:
        column: Column = {}
        for edge in (*pair.inward, *pair.outward):
            for link in edge.path:
                column[link] = column.get(link, 0) + 1
        links = len(self.search.topology.links)
        for index, switch in enumerate(self.limited):
            if sum(edge.near == switch for edge in pair.inward) > 1:
                column[links + index] = 1
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

    topology: Topology
    paths: _Paths
    root: int
    is_inward: bool
    extra: Mapping[int, float]

    def tree(self, chosen: Sequence[int]) -> _CostedTree:
        """Return the cheapest tree over all ranks and `chosen`, without switches that end it, and its cost."""
        ranks = self.topology.compute_count
        nodes = [*range(ranks), *sorted({*chosen, self.root} - {*range(ranks)})]
        places = [self.paths.place[node] for node in nodes]
        outward = self.paths.cost.T if self.is_inward else self.paths.cost
        cost = outward[np.ix_(places, places)]
        parent = cheapest_tree(cost, nodes.index(self.root)).tolist()
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


def _cheapest_nearby(costs: _TreeCosts, switches: Sequence[int]) -> _CostedTree:
    """Return a cheap tree: from no switch and from all, switches are added or left out while that pays."""
    best: _CostedTree = (np.inf, ())
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
        best = min(best, value, key=lambda each: each[0])
    return best


def _cheapest_of_all(costs: _TreeCosts, switches: Sequence[int]) -> _CostedTree:
    trees = (costs.tree(chosen) for size in range(len(switches) + 1) for chosen in combinations(switches, size))
    return min(trees, key=lambda each: each[0])


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
