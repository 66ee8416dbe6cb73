"""Pairs of trees over ranks and switches that add or multicast, their rates, and schedules made from them.

In a pair, one tree collects sums and the other spreads the results.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.methods.forest.tree_transfers import split_over_shards
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import ColumnBounds, Routes, Schedule
from chorale.synth.schedule.transforms import joined_routes
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class ReversibleTrees:
    """Trees over ranks and switches that add or multicast. The trees take the vector's units in order.

    Attributes:
        root, weight: int64 per tree: its root (a rank or a switch that adds), and the number of units it carries.
        tree, src, dst, lo, hi: int64 per edge: its tree, the node nearer to the root, the other node, and the units of
            the vector for which the tree uses this edge. A tree's edges bring each unit to each node once.
        route: int64 per edge, index into `routes`, whose links lead from src to dst.
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


@dataclass(frozen=True, slots=True, eq=False)
class PairedTrees:
    """Trees that collect sums at their roots, and trees that spread results from the same roots.

    inward: trees whose routes lead from dst to src, with the same roots and weights as `outward`
    """

    inward: ReversibleTrees
    outward: ReversibleTrees


def without_leaf_switches(topology: Topology, trees: ReversibleTrees) -> ReversibleTrees:
    """Return `trees` without edges to switches that do not forward anything. O(edges * height)."""
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
    """Return int32 per link: the opposite link of equal bandwidth. None if some link has no such opposite."""
    mates = _links_back(topology)
    classes = topology.links.bandwidth_class
    return mates if mates is not None and np.array_equal(classes, classes[mates]) else None


def with_equal_widths(topology: Topology) -> Topology | None:
    """Return `topology` with equal bandwidths in both directions: the smaller of a link's and its opposite link's.

    Returns None if a link has no opposite link. Links keep their ids, and trees that fit into the result also fit into
    `topology`.
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
    ends = ((links.src, links.dst), (links.dst, links.src), (parallel, parallel))
    if not all(np.array_equal(near[there], far[back]) for near, far in ends):
        return None
    mates = np.empty(len(links), dtype=np.int32)
    mates[there] = back
    return mates


def there_and_back(trees: ReversibleTrees, mates: NDArray[np.int32]) -> PairedTrees:
    """Return pairs of `trees` (outward) and the reversed `trees` (inward).

    mates: int32 per link of the trees' network: the opposite link
    """
    routes = trees.routes
    lengths = np.diff(routes.offsets)
    position = np.arange(len(routes.link_ids)) - np.repeat(routes.offsets[:-1], lengths)
    mirrored = np.repeat(routes.offsets[1:] - 1, lengths) - position
    return PairedTrees(replace(trees, routes=Routes(routes.offsets, mates[routes.link_ids[mirrored]])), trees)


def rate_of_pairs(topology: Topology, pairs: PairedTrees) -> Fraction:
    """Return the exact rate of an allreduce along `pairs`, limited by links and the rates at which switches can add."""
    loads = np.zeros(len(topology.links), dtype=np.int64)
    for trees in (pairs.inward, pairs.outward):
        offsets, links = trees.routes.offsets, trees.routes.link_ids
        count = np.diff(offsets)[trees.route]
        position = np.arange(count.sum()) + np.repeat(offsets[trees.route] - (np.cumsum(count) - count), count)
        np.add.at(loads, links[position], np.repeat(trees.hi - trees.lo, count))
    time, inward = topology.links.longest_time(loads), pairs.inward
    for switch, ability in topology.abilities.items():
        if ability.reduce_bandwidth is not None:
            children = np.bincount(inward.tree[inward.src == switch], minlength=len(inward.root))
            time = max(time, Fraction(int(inward.weight[children > 1].sum())) / ability.reduce_bandwidth)
    return pairs.outward.units / time


def endpoint_steps(topology: Topology, trees: ReversibleTrees) -> tuple[Integers, Integers]:
    """Return (step in which the source of each edge sends a result, number of steps of each tree).

    Steps are counted from the root. A rank sends one step after receiving, a switch in the same step. O(edges *
    height).
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


def schedule_of_pairs(
    topology: Topology,
    collective: Collective,
    pairs: PairedTrees,
    options: Options,
    construction: str,
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the schedule that sums inward, spreads results outward, or does both (allreduce). Not verified."""
    inward, outward = pairs.inward, pairs.outward
    in_step, height = endpoint_steps(topology, inward)
    out_step, _ = endpoint_steps(topology, outward)
    is_sum = collective.name in (CollectiveName.REDUCE, CollectiveName.REDUCE_SCATTER)
    parts, tables, first = [], [], 0
    if collective == ALLREDUCE or is_sum:
        parts.append((height[inward.tree] - 1 - in_step, inward.route, inward.lo, inward.hi, 1))
        tables.append(inward.routes)
        first = len(inward.routes)
    if not is_sum:
        sums_end = height - (inward.root >= topology.compute_count)  # a switch forwards in the step of the last sums
        start = sums_end[outward.tree] if collective == ALLREDUCE else 0
        parts.append((start + out_step, outward.route + first, outward.lo, outward.hi, 0))
        tables.append(outward.routes)
    routes = reduce(joined_routes, tables)
    steps, route, lo, hi = (np.concatenate([part[column] for part in parts]) for column in range(4))
    adds = np.concatenate([np.full(len(part[0]), part[4]) for part in parts])
    ranks, count = topology.compute_count, int(steps.max(initial=-1)) + 1
    order = np.argsort(steps, kind="stable")
    unit = int(np.gcd.reduce(np.concatenate([lo, hi, [outward.units]])))  # the fewest chunks that suit all intervals
    chunks, (row, *intervals) = split_over_shards(lo[order] // unit, hi[order] // unit, ranks, outward.units // unit)
    row = order[row]
    transfers = ColumnBounds(count, len(routes), ranks, chunks).pack((steps[row], route[row], *intervals, adds[row]))
    parameters = {
        "construction": construction, "k": options.k, "objective": options.objective, "seed": options.seed,
    }  # fmt: skip
    return Schedule(
        topology, collective, "pipelined", count, chunks, transfers, routes, "in-network", parameters, certificate
    )  # fmt: skip
