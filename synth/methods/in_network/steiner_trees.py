"""Cheapest trees that join all ranks, over switches that add and multicast where that pays, at given prices of links.

Switches that only pass on may lie on the path between two such nodes. Over a set of switches that must all be joined,
the cheapest tree is a minimum spanning tree of cheapest paths; the set is chosen by local search, or by trying all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chorale.synth.topology.topology import Topology


class TreeEdge(NamedTuple):
    """Two nodes of a tree, and the path from the first to the second: link ids."""

    src: int
    dst: int
    path: tuple[int, ...]


Tree = tuple[TreeEdge, ...]


@dataclass(frozen=True, slots=True, eq=False)
class TreeSearch:
    """The network by node.

    able:     switches that add and multicast
    passed:   those of them that add a limited amount, which paths may cross without adding
    leaving:  per node, (next node, link, pair of links) of each link out of it
    """

    topology: Topology
    able: tuple[int, ...]
    passed: frozenset[int]
    leaving: list[list[tuple[int, int, int]]]

    @staticmethod
    def of(topology: Topology, pair_of_link: NDArray[np.int64]) -> TreeSearch:
        """Return the search; links there and back are one pair, which has one price."""
        able = [node for node, ability in topology.abilities.items() if ability.multicast and ability.reduce]
        leaving: list[list[tuple[int, int, int]]] = [[] for _ in range(topology.node_count)]
        for index, link in enumerate(topology.links):
            if link.src != link.dst:
                leaving[link.src].append((link.dst, index, int(pair_of_link[index])))
        limited = frozenset(node for node in able if topology.abilities[node].reduce_bandwidth is not None)
        return TreeSearch(topology, tuple(sorted(able)), limited, leaving)

    def paths(self, price: NDArray[np.float64]) -> _Paths:
        """Return cheapest paths between ranks and able switches, inside which nodes only pass on."""
        ranks = self.topology.compute_count
        acting = [*range(ranks), *self.able]
        cost = np.full((len(acting), len(acting)), np.inf)
        place = {node: index for index, node in enumerate(acting)}
        came: list[dict[int, tuple[int, int]]] = []
        for index, source in enumerate(acting):
            best, before = self._from(source, place, price)
            came.append(before)
            for node, value in best.items():
                if node in place:
                    cost[index, place[node]] = value
        return _Paths(acting, cost, came)

    def _from(
        self, source: int, place: dict[int, int], price: NDArray[np.float64]
    ) -> tuple[dict[int, float], dict[int, tuple[int, int]]]:
        best, before = {source: 0.0}, dict[int, tuple[int, int]]()
        waiting = [(0.0, source)]
        while waiting:
            cost, node = heappop(waiting)
            if cost > best[node] or (node != source and node in place and node not in self.passed):
                continue
            for other, link, pair in self.leaving[node]:
                further = cost + float(price[pair])
                if further < best.get(other, np.inf):
                    best[other], before[other] = further, (node, link)
                    heappush(waiting, (further, other))
        return best, before

    def chosen_by_search(self, paths: _Paths, extra: Sequence[float]) -> Iterator[tuple[float, Tree]]:
        """Yield cheap trees: from no switch and from all, switches are added or left out while that pays."""
        for start in ((), self.able):
            chosen = set(start)
            value, _ = self._tree(paths, chosen, extra)
            is_better = True
            while is_better:
                is_better = False
                for switch in self.able:
                    other, _ = self._tree(paths, chosen ^ {switch}, extra)
                    if other < value - 1e-12:
                        chosen ^= {switch}
                        value, is_better = other, True
            yield self._tree(paths, chosen, extra)

    def chosen_from_all(self, paths: _Paths, extra: Sequence[float]) -> Iterator[tuple[float, Tree]]:
        """Yield the cheapest tree over each set of able switches: the cheapest of all trees is among them."""
        for size in range(len(self.able) + 1):
            for chosen in combinations(self.able, size):
                yield self._tree(paths, set(chosen), extra)

    def _tree(self, paths: _Paths, chosen: set[int], extra: Sequence[float]) -> tuple[float, Tree]:
        """Return the cheapest tree over the ranks and all of `chosen`, without switches that end it, and its cost."""
        ranks = self.topology.compute_count
        nodes = [*range(ranks), *(ranks + self.able.index(switch) for switch in sorted(chosen))]
        edges = _spanning(paths.cost[np.ix_(nodes, nodes)])
        pairs = [(nodes[parent], nodes[child]) for parent, child in edges]
        if any(np.isinf(paths.cost[pair]) for pair in pairs):
            return np.inf, ()
        while True:
            degree = np.bincount(np.array(pairs).ravel(), minlength=len(paths.acting))
            leaves = {node for node in nodes if node >= ranks and degree[node] == 1}
            if not leaves:
                break
            pairs = [pair for pair in pairs if leaves.isdisjoint(pair)]
        cost = sum(float(paths.cost[pair]) for pair in pairs)
        cost += sum(extra[node - ranks] for node in nodes if node >= ranks and degree[node] > 2)
        return cost, tuple(paths.edge(*pair) for pair in pairs)


class _Paths(NamedTuple):
    """acting: nodes between which there are paths;  cost: between two of them;  came: (node, link) before each."""

    acting: list[int]
    cost: NDArray[np.float64]
    came: list[dict[int, tuple[int, int]]]

    def edge(self, start: int, end: int) -> TreeEdge:
        links: list[int] = []
        node = self.acting[end]
        while node != self.acting[start]:
            node, link = self.came[start][node]
            links.append(link)
        return TreeEdge(self.acting[start], self.acting[end], tuple(reversed(links)))


def _spanning(cost: NDArray[np.float64]) -> list[tuple[int, int]]:
    """Return the edges (parent, child) of a minimum spanning tree (Prim). O(nodes ^ 2)."""
    best, parent = cost[0].copy(), np.zeros(len(cost), dtype=np.int64)
    outside = np.ones(len(cost), dtype=np.bool_)
    outside[0] = False
    edges = []
    for _ in range(len(cost) - 1):
        others = np.flatnonzero(outside)
        child = int(others[np.argmin(best[others])])
        outside[child] = False
        edges.append((int(parent[child]), child))
        closer = outside & (cost[child] < best)
        best[closer], parent[closer] = cost[child][closer], child
    return edges
