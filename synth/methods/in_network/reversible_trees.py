"""Trees that carry sums up and results down over the same links, with switches as inner nodes.

On links that are as wide one way as the other, some best pairs of trees are of this kind, whatever rank is the root.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.schedule.schedule import Routes
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class ReversibleTrees:
    """Trees over ranks and switches that act. The vector is cut into units, which trees take in order.

    root, weight: int64 per tree: its root, a rank, and how many units it carries
    tree, src, dst, lo, hi: int64 per edge: its tree, from the node nearer to the root to the other, and the units of
            the vector for which it takes the route; the edges of a tree take each unit to each node once
    route:  int64 per edge, into `routes`, whose links lead from src to dst
    """

    root: Integers
    weight: Integers
    tree: Integers
    src: Integers
    dst: Integers
    route: Integers
    lo: Integers
    hi: Integers
    routes: Routes

    @property
    def units(self) -> int:
        return int(self.weight.sum())


def without_leaf_switches(topology: Topology, trees: ReversibleTrees) -> ReversibleTrees:
    """Return `trees` without edges to switches from which nothing goes on. O(edges * height)."""
    nodes, ranks = topology.node_count, topology.compute_count
    src, dst = trees.tree * nodes + trees.src, trees.tree * nodes + trees.dst
    alive = np.ones(len(src), dtype=np.bool_)
    while True:
        has_child = np.zeros(len(trees.root) * nodes, dtype=np.bool_)
        has_child[src[alive]] = True
        leaf = alive & (trees.dst >= ranks) & ~has_child[dst]
        if not leaf.any():
            break
        alive &= ~leaf
    return ReversibleTrees(
        trees.root, trees.weight, trees.tree[alive], trees.src[alive], trees.dst[alive], trees.route[alive],
        trees.lo[alive], trees.hi[alive], trees.routes,
    )  # fmt: skip


def mates_of(topology: Topology) -> NDArray[np.int32] | None:
    """Return int32 per link: the link back of equal bandwidth; None where links are not as wide both ways."""
    mates = _links_back(topology)
    classes = topology.links.bandwidth_class
    return mates if mates is not None and np.array_equal(classes, classes[mates]) else None


def with_equal_widths(topology: Topology) -> Topology | None:
    """Return `topology` with each link as wide as the narrower of it and the link back; None where some has none.

    Links keep their numbers, so that what fits there fits here.
    """
    mates, links = _links_back(topology), topology.links
    if mates is None:
        return None
    if np.array_equal(links.bandwidth_class, links.bandwidth_class[mates]):
        return topology
    widths = [links.bandwidths[index] for index in links.bandwidth_class.tolist()]
    narrow = [min(width, widths[mate]) for width, mate in zip(widths, mates.tolist(), strict=True)]
    table = tuple(sorted(set(narrow)))
    classes = np.array([table.index(width) for width in narrow], dtype=links.bandwidth_class.dtype)
    return replace(topology, links=replace(links, bandwidth_class=classes, bandwidths=table), automorphisms=())


def _links_back(topology: Topology) -> NDArray[np.int32] | None:
    links = topology.links
    parallel = links.parallel_index()
    there = np.lexsort((parallel, links.dst, links.src))
    back = np.lexsort((parallel, links.src, links.dst))
    same_ends = np.array_equal(links.src[there], links.dst[back]) and np.array_equal(links.dst[there], links.src[back])
    if not same_ends or not np.array_equal(parallel[there], parallel[back]):
        return None
    mates = np.empty(len(links), dtype=np.int32)
    mates[there] = back
    return mates


def endpoint_steps(topology: Topology, trees: ReversibleTrees) -> tuple[Integers, Integers]:
    """Return (per edge, the step in which a result leaves its src, counted from the root; per tree, its steps).

    A rank sends a step after it has received, a switch in the same step. O(edges * height).
    """
    ranks, nodes = topology.compute_count, topology.node_count
    step = np.full(len(trees.root) * nodes, -1, dtype=np.int64)
    step[np.arange(len(trees.root)) * nodes + trees.root] = 0
    src, dst = trees.tree * nodes + trees.src, trees.tree * nodes + trees.dst
    costs = (trees.dst < ranks).astype(np.int64)
    waiting = np.arange(len(src))
    while len(waiting):
        ready = step[src[waiting]] >= 0
        now = waiting[ready]
        if not len(now):
            raise AssertionError("every edge of a tree must be reached from its root")
        step[dst[now]] = step[src[now]] + costs[now]
        waiting = waiting[~ready]
    height = np.zeros(len(trees.root), dtype=np.int64)
    np.maximum.at(height, trees.tree, step[src] + 1)
    return step[src], height
