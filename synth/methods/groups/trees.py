"""The cheapest ways to run a collective at given prices of links: trees of paths, and paths from one to all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.cheapest_tree import cheapest_tree
from chorale.synth.collective import CollectiveName
from chorale.synth.methods.groups.group import Group
from chorale.synth.topology.topology import Topology

Floats = NDArray[np.float64]


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


@dataclass(frozen=True)
class Edge:
    """Members of a group by place in it, the depth of the sender, and the path of links between them.

    target: for whom the data of an all-to-all are, -1 for all;  reduces: whether the receiver adds
    """

    depth: int
    sender: int
    receiver: int
    path: tuple[int, ...]
    reduces: bool = False
    target: int = -1


@dataclass(frozen=True)
class Routing:
    """One way to move a unit of a commodity. levels: steps that its edges are in."""

    edges: tuple[Edge, ...]

    @cached_property
    def links(self) -> NDArray[np.int64]:
        """The links of all edges, as often as they are crossed."""
        return np.array([link for edge in self.edges for link in edge.path], dtype=np.int64)

    @property
    def levels(self) -> int:
        return 1 + max(edge.depth for edge in self.edges)


def cheapest_way(group: Group, root: int, paths: PricedPaths) -> Routing:
    """Return the cheapest way for the root or source at place `root` of `group`. O(ranks^3), for allreduce to ^4."""
    members = np.array(group.ranks)
    cost = paths.distance[np.ix_(members, members)]
    name = group.collective.name
    if name == CollectiveName.ALLTOALL:
        others = [place for place in range(len(members)) if place != root]
        return Routing(tuple(Edge(0, root, place, _path(paths, group, root, place), target=place) for place in others))
    if name == CollectiveName.ALLGATHER:
        return Routing(tuple(_outward(group, paths, cheapest_tree(cost, root), root, 0)))
    if name == CollectiveName.REDUCE_SCATTER:
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
