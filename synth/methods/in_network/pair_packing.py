"""Packs pairs of trees on any network: one tree collects sums, the other spreads results.

The first tree may branch at switches that reduce data, the second at switches that multicast. Either both trees have
the same rank as root, or the first tree's root is a switch that reduces data and then sends the sums to a switch that
multicasts. Column generation finds cheap pairs with the help of link prices. If the last round compared all roots and
all sets of switches, the prices prove that no pairs are better.

If every link has the same bandwidth in both directions, there are best pairs that use the same tree up and down, over
switches that both reduce and multicast. Such a pair costs the same from every root. So only trees from rank 0 are
compared, a link and its opposite link share a price, and larger networks can be solved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush
from itertools import combinations, islice
from math import lcm
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.certificate import PAIR_PRICES, time_by_prices
from chorale.synth.bounds.tree_pairs import exact_vertex
from chorale.synth.errors import CheckFailed
from chorale.synth.linear_program import Floats, SparseMatrix, minimum, of_entries
from chorale.synth.methods.alltoall.rate import integer_prices
from chorale.synth.methods.forest.reversible_trees import PairedTrees, ReversibleTrees
from chorale.synth.methods.in_network.trees import MAX_UNITS
from chorale.synth.methods.spanning_trees import cheapest_tree, spanning_tree
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology

Column = dict[int, int]
"""A pair's coefficients, by row of the linear program: how often the pair uses the resource that the row limits."""

_MOST_AT_ONCE = 12
_GAIN = 1e-7
MAX_ACTORS, MAX_ACTORS_BOTH_WAYS = 40, 256
"""Maximum number of ranks and of switches that reduce or multicast, in total: for all roots, and for rank 0 alone."""
_MAX_WORK = 2**17
"""Approximate limit on (number of trees made in all rounds) * (number of nodes in a tree)."""
MAX_TREES = 2**11
"""If (sets of switches) * (roots) is at most this, all trees are compared in the last round."""
_LEAST_ROUNDS = 4
_ROUNDS_BOTH_WAYS, _ROUNDS_OF_MANY, _FEW_ACTORS = 300, 12, 64


class PairEdge(NamedTuple):
    """An edge of a tree: the node nearer to the root, the other node, and the links between them in travel order."""

    near: int
    far: int
    path: tuple[int, ...]


Edges = tuple[PairEdge, ...]
_CostedTree = tuple[float, Edges]


class Pair(NamedTuple):
    """A tree that collects sums (`inward`) at a rank or switch (`root`), and a tree that spreads them (`outward`)."""

    root: int
    inward: Edges
    outward: Edges


@dataclass(frozen=True, slots=True, eq=False)
class PairPacking:
    """Pairs of trees, and the rate at which each pair moves data (`rates`).

    certificate: proof that no pairs of trees have a larger total rate; None if not all pairs were compared
    """

    pairs: list[Pair]
    rates: list[Fraction]
    certificate: Mapping[str, Any] | None

    @property
    def rate(self) -> Fraction:
        return sum(self.rates, Fraction(0))


def pair_packing(topology: Topology, enough: Fraction, mates: NDArray[np.int32] | None = None) -> PairPacking | None:
    """Return pairs of trees whose rates sum to `enough`, or the best pairs found; None if the network is too large.

    mates: for each link, the opposite link with the same bandwidth; if given, pairs use the same tree up and down
    """
    links = topology.links
    rows = np.arange(len(links)) if mates is None else np.minimum(np.arange(len(links)), mates)
    names, row = np.unique(rows, return_inverse=True)
    search = _PairSearch(topology, row, is_both_ways=mates is not None)
    actors, adders, copiers = len(search.nodes), len(search.adders), len(search.copiers)
    if actors > (MAX_ACTORS if mates is None else MAX_ACTORS_BOTH_WAYS):
        return None
    if mates is None:
        trees = (2**adders + 2**copiers) * actors
        rounds = max(_LEAST_ROUNDS, _MAX_WORK // (actors**2 * (adders + copiers + 1)))
    else:
        trees = 2 ** (adders + 1)
        rounds = _ROUNDS_BOTH_WAYS if actors <= _FEW_ACTORS else _ROUNDS_OF_MANY
    widths = [links.bandwidths[index] for index in links.bandwidth_class[names].tolist()]
    bound = [*widths, *search.limits.values()]
    pairs, columns, point, prices, is_best = _generated(search, bound, float(enough), rounds, trees <= MAX_TREES)
    certificate: Mapping[str, Any] | None = None
    if is_best:
        of_links = prices[row] / (1 if mates is None else 2)
        whole = integer_prices(np.append(of_links, prices[len(widths) :])).tolist()
        nodes = [topology.node_ids[switch] for switch in search.limits]
        sums = dict(zip(nodes, whole[len(of_links) :], strict=True))
        with suppress(CheckFailed):  # too many trees to compare
            time = time_by_prices(topology, whole[: len(of_links)], sums)
            certificate = {
                "kind": PAIR_PRICES, "prices": whole[: len(of_links)], "sum_prices": sums, "time_per_byte": str(time),
            }  # fmt: skip
    if mates is not None:
        pairs = [_there_and_back(topology, pair.outward, mates) for pair in pairs]
    # Use the exact vertex near `point` (or `point` rounded, if that is better), scaled down to fit all limits.
    rates = exact_vertex(column_matrix(columns, len(bound)), bound, point)
    if rates is None or sum(rates) < Fraction(float(point.sum())) * (1 - Fraction(1, 10**6)):
        rates = [Fraction(value).limit_denominator(2**17) for value in point.tolist()]
    load = [Fraction(0)] * len(bound)
    for rate, column in zip(rates, columns, strict=True):
        for limit, count in column.items():
            load[limit] += rate * count
    excess = max(1, *(value / width for value, width in zip(load, bound, strict=True)))
    return PairPacking(pairs, [rate / excess for rate in rates], certificate)


def _generated(
    search: _PairSearch, bound: Sequence[Fraction], enough: float, rounds: int, compares_all: bool
) -> tuple[list[Pair], list[Column], Floats, Floats, bool]:
    """Generate pairs; return (pairs, columns, rate per pair, price per row, whether the last round compared all pairs).

    The search ends when the rates add up to `enough`, when no pair is cheap enough to help, or after `rounds` rounds.
    """
    pairs: list[Pair] = []
    columns: list[Column] = []
    widths = np.array([float(value) for value in bound])
    scale = widths.max()

    def add_cheap(prices: Floats, below: float, thorough: bool) -> bool:
        offers = sorted(
            (offer for offer in search.offers(prices, thorough) if offer[0] < below), key=lambda each: each[0]
        )
        count = len(pairs)
        for _, pair, column in islice(offers, _MOST_AT_ONCE):
            if column not in columns:
                pairs.append(pair)
                columns.append(column)
        return len(pairs) > count

    add_cheap(1.0 / widths, np.inf, thorough=False)
    for _ in range(rounds):
        matrix = column_matrix(columns, len(widths))
        point, marginals = minimum(-np.ones(len(pairs)), matrix, widths / scale, "use trees of ranks alone")
        point, prices = np.maximum(0.0, point) * scale, np.maximum(0.0, -marginals)
        if point.sum() >= enough * (1 - 1e-9):
            return pairs, columns, point, prices, False
        if add_cheap(prices, 1 - _GAIN, thorough=False):
            continue
        if not compares_all or not add_cheap(prices, 1 - _GAIN, thorough=True):
            return pairs, columns, point, prices, compares_all
    return pairs, columns, np.pad(point, (0, len(pairs) - len(point))), prices, False


def column_matrix(columns: Sequence[Column], rows: int) -> SparseMatrix:
    entries = [(row, index, count) for index, column in enumerate(columns) for row, count in column.items()]
    row, column, value = (np.array(part) for part in zip(*entries, strict=True))
    return of_entries(row, column, value, rows, len(columns))


def _there_and_back(topology: Topology, tree: Edges, mates: NDArray[np.int32]) -> Pair:
    """Return `tree` as a pair of trees, up and down, whose root is the rank for which the tree is lowest."""

    def turned(path: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(int(mates[link]) for link in reversed(path))

    edges: dict[int, list[PairEdge]] = {}
    for edge in tree:
        edges.setdefault(edge.near, []).append(edge)
        edges.setdefault(edge.far, []).append(PairEdge(edge.far, edge.near, turned(edge.path)))

    def outward(root: int) -> tuple[int, list[PairEdge]]:
        """Return the height of the tree from `root`, and its edges in breadth-first order."""
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
    return Pair(root, tuple(edge._replace(path=turned(edge.path)) for edge in down), down)


class _PairSearch:
    """Finds cheap pairs of trees at given prices.

    nodes: ranks, then the switches that reduce or multicast; `place` maps each of them to its index in this list
    adders, copiers: switches that reduce, and switches that multicast; if `is_both_ways`, only switches that do both
    limits: adder -> its maximum rate, if it has one; in the linear program, the rows of these adders follow those of
            links
    row: for each link, the row of the linear program that limits its load
    """

    def __init__(self, topology: Topology, row: NDArray[np.int64], *, is_both_ways: bool) -> None:
        self.topology, self.row, self.is_both_ways = topology, row, is_both_ways
        abilities = sorted(topology.abilities.items())
        if is_both_ways:
            abilities = [(node, ability) for node, ability in abilities if ability.reduce and ability.multicast]
        ranks = range(topology.compute_count)
        self.nodes = [*ranks, *(node for node, _ in abilities)]
        self.place = {node: index for index, node in enumerate(self.nodes)}
        self.adders = [node for node, ability in abilities if ability.reduce]
        self.copiers = [node for node, ability in abilities if ability.multicast]
        self.limits = {
            node: limit for node, each in abilities if each.reduce and (limit := each.reduce_bandwidth) is not None
        }
        self._leaving: list[list[tuple[int, int]]] = [[] for _ in range(topology.node_count)]
        for index, link in enumerate(topology.links):
            if link.src != link.dst:
                self._leaving[link.src].append((link.dst, index))
        # Nodes that paths do not pass through: ranks and, if trees are used both ways, adders without a limit.
        unlimited = [node for node in self.adders if is_both_ways and node not in self.limits]
        self._ends = frozenset([*ranks, *unlimited])
        self._cost: Floats = np.zeros((0, 0))  # cost of the cheapest path between any two of `nodes`
        self._came: list[dict[int, tuple[int, int]]] = []  # per source, by node: (previous node, link) on its path

    def offers(self, prices: Floats, thorough: bool) -> Iterator[tuple[float, Pair, Column]]:
        """Yield (cost, pair, column) for each root's cheapest pair or, if `is_both_ways`, for several pairs of rank 0.

        thorough: whether to compare all sets of switches, instead of using local search
        """
        # the cheapest paths between ranks and switches that add or multicast (Dijkstra)
        price = prices[self.row]
        self._cost = np.full((len(self.nodes), len(self.nodes)), np.inf)
        self._came = []
        for index, source in enumerate(self.nodes):
            best, before = {source: 0.0}, dict[int, tuple[int, int]]()
            waiting = [(0.0, source)]
            while waiting:
                cost, node = heappop(waiting)
                if cost > best[node] or (node != source and node in self._ends):
                    continue
                for other, link in self._leaving[node]:
                    further = cost + float(price[link])
                    if further < best.get(other, np.inf):
                        best[other], before[other] = further, (node, link)
                        heappush(waiting, (further, other))
            self._came.append(before)
            for node in best.keys() & self.place.keys():
                self._cost[index, self.place[node]] = best[node]
        per_sum = dict(zip(self.limits, prices[int(self.row.max()) + 1 :].tolist(), strict=True))

        def inward(root: int) -> _CostedTree:
            return min(self._trees(root, self.adders, True, per_sum, thorough), key=lambda each: each[0])

        def outward(root: int) -> _CostedTree:
            return min(self._trees(root, self.copiers, False, {}, thorough), key=lambda each: each[0])

        pairs: list[tuple[float, Pair]] = []
        if self.is_both_ways:
            trees = self._trees(0, self.copiers, False, per_sum, thorough)
            pairs += [(cost, Pair(0, (), tree)) for cost, tree in trees]
        else:
            for root in range(self.topology.compute_count):
                (cost_in, trees_in), (cost_out, trees_out) = inward(root), outward(root)
                pairs.append((cost_in + cost_out, Pair(root, trees_in, trees_out)))
            spread = {switch: outward(switch) for switch in self.copiers if self.adders}
            for adder in self.adders if spread else ():  # the adder sends its sums to a switch that copies
                cost_in, trees_in = inward(adder)
                between = {switch: float(self._cost[self.place[adder], self.place[switch]]) for switch in spread}
                start = min(spread, key=lambda switch: spread[switch][0] + between[switch])
                cost_out, trees_out = spread[start]
                if start != adder and np.isfinite(between[start]):
                    trees_out = (PairEdge(adder, start, self._path(adder, start)), *trees_out)
                pairs.append((cost_in + between[start] + cost_out, Pair(adder, trees_in, trees_out)))
        for cost, pair in pairs:
            if np.isfinite(cost):
                yield cost, pair, self._column(pair)

    def _column(self, pair: Pair) -> Column:
        column: Column = {}
        for edge in (*pair.inward, *pair.outward):
            for row in self.row[list(edge.path)].tolist():
                column[row] = column.get(row, 0) + 1
        summed = pair.outward if self.is_both_ways else pair.inward
        for index, switch in enumerate(self.limits):
            if sum(edge.near == switch for edge in summed) > 1:
                column[int(self.row.max()) + 1 + index] = 1
        return column

    def _path(self, start: int, end: int) -> tuple[int, ...]:
        links: list[int] = []
        while end != start:
            end, link = self._came[self.place[start]][end]
            links.append(link)
        return tuple(reversed(links))

    def _tree(self, root: int, chosen: Sequence[int], inward: bool, per_sum: Mapping[int, float]) -> _CostedTree:
        """Return (cost, edges) of the cheapest tree over all ranks and the switches `chosen`. No leaf is a switch.

        per_sum: for each adder with a limit, the price of a sum at it
        """
        ranks = self.topology.compute_count
        nodes = [*range(ranks), *sorted({*chosen, root} - {*range(ranks)})]
        places = [self.place[node] for node in nodes]
        costs = self._cost.T if inward else self._cost
        make = spanning_tree if self.is_both_ways else cheapest_tree
        parent = make(costs[np.ix_(places, places)], nodes.index(root)).tolist()
        pairs = [(nodes[above], nodes[child]) for child, above in enumerate(parent) if above >= 0]
        if any(np.isinf(costs[self.place[near], self.place[far]]) for near, far in pairs):
            return np.inf, ()
        while leaves := {far for _, far in pairs if far >= ranks} - {near for near, _ in pairs}:
            pairs = [pair for pair in pairs if pair[1] not in leaves]
        value = sum(float(costs[self.place[near], self.place[far]]) for near, far in pairs)
        for switch, price in per_sum.items():
            value += price if sum(near == switch for near, _ in pairs) > 1 else 0.0
        paths = (self._path(*((far, near) if inward else (near, far))) for near, far in pairs)
        return value, tuple(PairEdge(*pair, path) for pair, path in zip(pairs, paths, strict=True))

    def _trees(
        self, root: int, switches: Sequence[int], inward: bool, per_sum: Mapping[int, float], thorough: bool
    ) -> Iterator[_CostedTree]:
        """Yield the cheapest tree over each set of switches or, unless `thorough`, two cheap trees.

        The two trees are found by local search over sets of switches, starting with no switches and with all switches.
        """
        if thorough:
            for size in range(len(switches) + 1):
                yield from (self._tree(root, each, inward, per_sum) for each in combinations(switches, size))
            return
        for start in ((), switches):
            chosen, value = set(start), self._tree(root, tuple(start), inward, per_sum)
            is_better = True
            while is_better:
                is_better = False
                for switch in switches:
                    other = self._tree(root, tuple(chosen ^ {switch}), inward, per_sum)
                    if other[0] < value[0] - 1e-12:
                        chosen ^= {switch}
                        value, is_better = other, True
            yield value


def pairs_of_packing(packing: PairPacking, units: int | None) -> PairedTrees:
    """Return the trees of `packing`, with about `units` units in total.

    If `units` is None, there are as few units as exact rates need, or about 2^17 if they need more than `MAX_UNITS`.
    """
    exact = lcm(*(rate.denominator for rate in packing.rates))
    scale = Fraction(exact) if units is None and exact * packing.rate <= MAX_UNITS else (units or 2**17) / packing.rate
    weights = [int(rate * scale) for rate in packing.rates]
    if not any(weights):
        weights[packing.rates.index(max(packing.rates))] = 1
    used = [(pair, weight) for pair, weight in zip(packing.pairs, weights, strict=True) if weight]
    inward = _table([(pair.root, weight, pair.inward) for pair, weight in used])
    return PairedTrees(inward, _table([(pair.root, weight, pair.outward) for pair, weight in used]))


def _table(parts: Sequence[tuple[int, int, Edges]]) -> ReversibleTrees:
    columns: list[tuple[int, int, int, int, int, int]] = []
    paths: list[tuple[int, ...]] = []
    before = 0
    for number, (_, weight, edges) in enumerate(parts):
        for edge in edges:
            columns.append((number, edge.near, edge.far, len(paths), before, before + weight))
            paths.append(edge.path)
        before += weight
    tree, near, far, route, lo, hi = np.array(columns, dtype=np.int64).T
    roots, weights = np.array([part[0] for part in parts]), np.array([part[1] for part in parts])
    return ReversibleTrees(roots, weights, tree, near, far, route, lo, hi, Routes.of_paths(paths))
