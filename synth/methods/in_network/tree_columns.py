"""The best packing of trees into a small network, by column generation: trees are added while one is cheap enough.

The linear program has a row per pair of links (there and back) and per adder with a limit, and a column per tree. Its
multipliers are prices; a tree that costs less than what its rate earns improves it. Where all sets of switches were
tried at the end, no packing of such trees is better.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from math import lcm

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.exact_vertex import exact_vertex
from chorale.synth.lazy_modules import sparse
from chorale.synth.linear_program import Floats, minimum
from chorale.synth.methods.in_network.reversible_trees import ReversibleTrees
from chorale.synth.methods.in_network.steiner_trees import Tree, TreeEdge, TreeSearch
from chorale.synth.methods.in_network.tree_packing import MAX_UNITS
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology

OrientedEdge = tuple[TreeEdge, bool]
"""An edge, and whether it leads from its dst to its src."""

MAX_ACTORS = 256
"""Ranks and able switches, beyond which column generation takes long."""
MAX_SETS = 2**10
"""Sets of switches that are all tried."""
_MAX_ROUNDS = 300
_FEW_ACTORS = 64
_ROUNDS_OF_MANY = 12
_MOST_AT_ONCE = 12
_GAIN = 1e-7


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPacking:
    """trees, rates: a packing;  prices: Fraction-able floats per pair of links and per limited adder
    is_best: whether all trees were compared at the end, so that no packing of such trees is better
    """

    trees: list[Tree]
    rates: list[Fraction]
    prices: Floats
    is_best: bool

    @property
    def rate(self) -> Fraction:
        return sum(self.rates, Fraction(0))


def column_packing(topology: Topology, mates: NDArray[np.int32], enough: Fraction) -> ColumnPacking | None:
    """Return the packing, as good as `enough` or the best that was found; None for networks that are too large."""
    pair, widths = _pairs(topology, mates)
    search = TreeSearch.of(topology, pair)
    if topology.compute_count + len(search.able) > MAX_ACTORS:
        return None
    limits = {
        switch: limit for switch in search.able if (limit := topology.abilities[switch].reduce_bandwidth) is not None
    }
    bound = [*widths, *limits.values()]
    generation = _Columns(topology, search, pair, list(limits), bound)
    point, prices, is_best = generation.solved(float(enough))
    return ColumnPacking(generation.trees, generation.exact_rates(point), prices, is_best)


def _pairs(topology: Topology, mates: NDArray[np.int32]) -> tuple[NDArray[np.int64], list[Fraction]]:
    """Return (per link, the number of the pair it is in; the width of each pair)."""
    links = topology.links
    first = np.minimum(np.arange(len(links)), mates)
    names, pair = np.unique(first, return_inverse=True)
    return pair.astype(np.int64), [links.bandwidths[links.bandwidth_class[link]] for link in names.tolist()]


@dataclass(slots=True, eq=False)
class _Columns:
    """The linear program. limited: adders with a limit, whose rows follow those of pairs;  bound: of all rows."""

    topology: Topology
    search: TreeSearch
    pair: NDArray[np.int64]
    limited: list[int]
    bound: list[Fraction]
    trees: list[Tree] = field(default_factory=list)
    columns: list[dict[int, int]] = field(default_factory=list)

    def solved(self, enough: float) -> tuple[Floats, Floats, bool]:
        """Return (rate per tree, price per row, whether all trees were compared)."""
        widths = np.array([float(value) for value in self.bound])
        self._add_cheap(1.0 / widths, np.inf, thorough=False)
        actors = self.topology.compute_count + len(self.search.able)
        for _ in range(_MAX_ROUNDS if actors <= _FEW_ACTORS else _ROUNDS_OF_MANY):
            matrix = self._matrix()
            scale = widths.max()
            point, marginals = minimum(-np.ones(len(self.trees)), matrix, widths / scale, "use trees of ranks alone")
            point, prices = np.maximum(0.0, point) * scale, np.maximum(0.0, -marginals)
            if point.sum() >= enough * (1 - 1e-9):
                return point, prices, False
            if not self._add_cheap(prices, 1 - _GAIN, thorough=False):
                tries_all = 2 ** len(self.search.able) <= MAX_SETS
                if not tries_all or not self._add_cheap(prices, 1 - _GAIN, thorough=True):
                    return point, prices, tries_all
        return np.pad(point, (0, len(self.trees) - len(point))), prices, False

    def _add_cheap(self, prices: Floats, below: float, thorough: bool) -> bool:
        """Add the cheapest trees that cost less than `below`; return whether there is one."""
        rows = len(self.bound) - len(self.limited)
        extra = [float(prices[rows + self.limited.index(s)]) if s in self.limited else 0.0 for s in self.search.able]
        paths = self.search.paths(prices[:rows])
        choose = self.search.chosen_from_all if thorough else self.search.chosen_by_search
        cheap = sorted((tree for tree in choose(paths, extra) if tree[0] < below), key=lambda tree: tree[0])
        is_new = False
        for _, tree in islice(cheap, _MOST_AT_ONCE):
            column = self._column(tree)
            if column not in self.columns:
                self.trees.append(tree)
                self.columns.append(column)
                is_new = True
        return is_new

    def _column(self, tree: Tree) -> dict[int, int]:
        column: dict[int, int] = {}
        for edge in tree:
            for link in edge.path:
                row = int(self.pair[link])
                column[row] = column.get(row, 0) + 1
        rows = len(self.bound) - len(self.limited)
        for index, switch in enumerate(self.limited):
            if sum(switch in (edge.src, edge.dst) for edge in tree) > 2:
                column[rows + index] = 1
        return column

    def _matrix(self) -> sparse.csr_array:
        entries = [(row, index, count) for index, column in enumerate(self.columns) for row, count in column.items()]
        row, column, value = (np.array(part) for part in zip(*entries, strict=True))
        shape = (len(self.bound), len(self.trees))
        return sparse.coo_array((value.astype(np.float64), (row, column)), shape=shape).tocsr()

    def exact_rates(self, point: Floats) -> list[Fraction]:
        """Return rates that fit exactly: the vertex, or `point` rounded and slowed down."""
        rates = exact_vertex(self._matrix(), self.bound, point)
        if rates is None or sum(rates) < Fraction(float(point.sum())) * (1 - Fraction(1, 10**6)):
            rates = [Fraction(value).limit_denominator(2**17) for value in point.tolist()]
        load = [Fraction(0)] * len(self.bound)
        for rate, column in zip(rates, self.columns, strict=True):
            for row, count in column.items():
                load[row] += rate * count
        excess = max(value / width for value, width in zip(load, self.bound, strict=True))
        return [rate / max(Fraction(1), excess) for rate in rates]


def trees_of_packing(topology: Topology, packing: ColumnPacking, units: int | None) -> ReversibleTrees:
    """Return the packing as trees with whole units, each rooted where it is lowest; about `units` units if given."""
    exact = lcm(*(rate.denominator for rate in packing.rates))
    scale = Fraction(exact) if units is None and exact * packing.rate <= MAX_UNITS else (units or 2**17) / packing.rate
    weights = [int(rate * scale) for rate in packing.rates]
    if not any(weights):
        weights[packing.rates.index(max(packing.rates))] = 1
    columns: list[tuple[int, int, int, int, int, int]] = []
    paths: list[tuple[int, ...]] = []
    roots: list[int] = []
    kept: list[int] = []
    before = 0
    links = topology.links
    back = {(int(links.src[i]), int(links.dst[i]), int(p)): i for i, p in enumerate(links.parallel_index())}
    parallel = links.parallel_index()
    for tree, weight in zip(packing.trees, weights, strict=True):
        if not weight:
            continue
        root, ordered = _rooted(topology, tree)
        for edge, is_turned in ordered:
            path = edge.path
            if is_turned:
                path = tuple(back[int(links.dst[i]), int(links.src[i]), int(parallel[i])] for i in reversed(edge.path))
            src, dst = (edge.dst, edge.src) if is_turned else (edge.src, edge.dst)
            columns.append((len(roots), src, dst, len(paths), before, before + weight))
            paths.append(path)
        roots.append(root)
        kept.append(weight)
        before += weight
    tree_of, src_of, dst_of, route, lo, hi = np.array(columns, dtype=np.int64).T
    return ReversibleTrees(
        np.array(roots), np.array(kept), tree_of, src_of, dst_of, route, lo, hi, Routes.of_paths(paths)
    )


def _rooted(topology: Topology, tree: Tree) -> tuple[int, list[OrientedEdge]]:
    """Return (the rank from which the tree is lowest, its edges outward with whether they are turned around)."""
    ranks = topology.compute_count
    beside: dict[int, list[tuple[int, TreeEdge, bool]]] = {}
    for edge in tree:
        beside.setdefault(edge.src, []).append((edge.dst, edge, False))
        beside.setdefault(edge.dst, []).append((edge.src, edge, True))

    def outward(root: int) -> tuple[int, list[OrientedEdge]]:
        step, waiting = {root: 0}, [root]
        order: list[OrientedEdge] = []
        for node in waiting:
            for other, edge, is_turned in beside[node]:
                if other not in step:
                    step[other] = step[node] + (other < ranks)
                    order.append((edge, is_turned))
                    waiting.append(other)
        return max(step.values()), order

    _, root = min((outward(root)[0], root) for root in range(ranks))
    return root, outward(root)[1]
