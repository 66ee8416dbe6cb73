"""Trees that carry sums up and results down over the same links, with switches as inner nodes, and their schedules.

On links that are as wide one way as the other, some best pairs of trees are of this kind, whatever rank is the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.methods.forest.tree_transfers import split_over_shards
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule
from chorale.synth.schedule.transforms import joined_routes
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
    links = topology.links
    parallel = links.parallel_index()
    there = np.lexsort((parallel, links.dst, links.src))
    back = np.lexsort((parallel, links.src, links.dst))
    same_ends = np.array_equal(links.src[there], links.dst[back]) and np.array_equal(links.dst[there], links.src[back])
    if not same_ends or not np.array_equal(links.bandwidth_class[there], links.bandwidth_class[back]):
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


def schedule_of_trees(
    topology: Topology,
    collective: Collective,
    trees: ReversibleTrees,
    mates: NDArray[np.int32],
    *,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the schedule that adds up along `trees`, spreads results along them, or both (allreduce). Not verified.

    All trees stream at the same time, without a barrier. Switches send in the step in which they receive.
    """
    step, height = endpoint_steps(topology, trees)
    back = _reversed(trees.routes, mates)
    up_step = height[trees.tree] - 1 - step
    name = collective.name
    parts = []
    if name in (CollectiveName.ALLREDUCE, CollectiveName.REDUCE, CollectiveName.REDUCE_SCATTER):
        parts.append((up_step, trees.route, 1))
    if name not in (CollectiveName.REDUCE, CollectiveName.REDUCE_SCATTER):
        start = height[trees.tree] if collective == ALLREDUCE else 0
        parts.append((start + step, trees.route + len(back), 0))
    routes = joined_routes(back, trees.routes)
    steps = np.concatenate([part[0] for part in parts])
    route = np.concatenate([part[1] for part in parts])
    reduce = np.concatenate([np.full(len(part[0]), part[2]) for part in parts])
    lo, hi = np.tile(trees.lo, len(parts)), np.tile(trees.hi, len(parts))
    ranks, count = topology.compute_count, int(steps.max(initial=-1)) + 1
    order = np.argsort(steps, kind="stable")
    chunks, (row, *intervals) = split_over_shards(lo[order], hi[order], ranks, trees.units)
    row = order[row]
    transfers = ColumnBounds(count, len(routes), ranks, chunks).pack((steps[row], route[row], *intervals, reduce[row]))
    return Schedule(
        topology, collective, "pipelined", count, chunks, transfers, routes, method, parameters, certificate
    )  # fmt: skip


def _reversed(routes: Routes, mates: NDArray[np.int32]) -> Routes:
    """Return each route from its end to its start over the links back."""
    lengths = np.diff(routes.offsets)
    position = np.arange(len(routes.link_ids)) - np.repeat(routes.offsets[:-1], lengths)
    mirrored = np.repeat(routes.offsets[1:] - 1, lengths) - position
    return Routes(routes.offsets, mates[routes.link_ids[mirrored]])
