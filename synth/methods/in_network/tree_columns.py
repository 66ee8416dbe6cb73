"""The best packing of trees that go up and down over the same links, by column generation, into a small network.

Where all sets of switches were tried at the end, no packing of such trees is better, and the prices prove it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.in_network.column_program import Column, ColumnProgram
from chorale.synth.methods.in_network.price_proof import price_certificate
from chorale.synth.methods.in_network.reversible_trees import ReversibleTrees
from chorale.synth.methods.in_network.steiner_trees import Tree, TreeEdge, TreeSearch
from chorale.synth.methods.in_network.tree_packing import MAX_UNITS
from chorale.synth.schedule.schedule import Routes
from chorale.synth.sparse_matrix import Floats
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


@dataclass(frozen=True, slots=True, eq=False)
class ColumnPacking:
    """trees, rates: a packing;  certificate: proof that no pairs of trees are better, None if not all were compared"""

    trees: list[Tree]
    rates: list[Fraction]
    certificate: Mapping[str, Any] | None

    @property
    def rate(self) -> Fraction:
        return sum(self.rates, Fraction(0))


def column_packing(topology: Topology, mates: NDArray[np.int32], enough: Fraction) -> ColumnPacking | None:
    """Return the packing, as good as `enough` or the best that was found; None for networks that are too large."""
    pair, widths = _pairs(topology, mates)
    search = TreeSearch.of(topology, pair)
    actors = topology.compute_count + len(search.able)
    if actors > MAX_ACTORS:
        return None
    limits = {
        switch: limit for switch in search.able if (limit := topology.abilities[switch].reduce_bandwidth) is not None
    }
    offers = _Offers(search, pair, list(limits), len(widths))
    program = ColumnProgram([*widths, *limits.values()], offers, 2 ** len(search.able) <= MAX_SETS)
    point, prices = program.solved(float(enough), _MAX_ROUNDS if actors <= _FEW_ACTORS else _ROUNDS_OF_MANY)
    certificate = None
    if program.is_best:
        by_pair = prices[: len(widths)]
        sums = dict(zip(limits, prices[len(widths) :].tolist(), strict=True))
        certificate = price_certificate(topology, by_pair[pair] / 2, sums)
    return ColumnPacking(program.items, program.exact_rates(point), certificate)


def _pairs(topology: Topology, mates: NDArray[np.int32]) -> tuple[NDArray[np.int64], list[Fraction]]:
    """Return (per link, the number of the pair it is in; the width of each pair)."""
    links = topology.links
    first = np.minimum(np.arange(len(links)), mates)
    names, pair = np.unique(first, return_inverse=True)
    return pair.astype(np.int64), [links.bandwidths[links.bandwidth_class[link]] for link in names.tolist()]


@dataclass(frozen=True, slots=True, eq=False)
class _Offers:
    """Cheap trees. limited: adders with a limit, whose rows follow those of `pairs` pairs of links."""

    search: TreeSearch
    pair: NDArray[np.int64]
    limited: list[int]
    pairs: int

    def __call__(self, prices: Floats, thorough: bool) -> Iterator[tuple[float, Tree, Column]]:
        """Yield trees with their costs and columns."""
        extra = [
            float(prices[self.pairs + self.limited.index(switch)]) if switch in self.limited else 0.0
            for switch in self.search.able
        ]
        paths = self.search.paths(prices[: self.pairs])
        choose = self.search.chosen_from_all if thorough else self.search.chosen_by_search
        for cost, tree in choose(paths, extra):
            yield cost, tree, self._column(tree)

    def _column(self, tree: Tree) -> Column:
        column: Column = {}
        for edge in tree:
            for link in edge.path:
                row = int(self.pair[link])
                column[row] = column.get(row, 0) + 1
        for index, switch in enumerate(self.limited):
            if sum(switch in (edge.src, edge.dst) for edge in tree) > 2:
                column[self.pairs + index] = 1
        return column


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
