"""Makes trees over ranks and switches that collect sums or spread results, and schedules that use these trees.

The switches in a tree can reduce or multicast data. A schedule of pairs of trees sums the vector along the inward tree
of each pair and spreads the result along the outward tree, without a barrier between the two phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.residual_graph import Integers
from chorale.synth.collective import ALLREDUCE, Collective, CollectiveName
from chorale.synth.methods.forest.network import Trees, network_of_links, tree_heights
from chorale.synth.methods.forest.packing import pack_trees
from chorale.synth.methods.forest.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import split_over_shards, tree_transfers
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule, joined_routes, reversed_routes
from chorale.synth.topology.expansions import Relabelled
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class ReversibleTrees:
    """Trees over ranks and switches that reduce or multicast. The vector's units are assigned to the trees in order.

    Attributes:
        root, weight: int64 per tree: its root (a rank or a switch that reduces), and the number of units it carries.
        tree, src, dst, lo, hi: int64 per edge: its tree, the node nearer to the root, the other node, and the units of
            the vector (`lo` to `hi - 1`) that the edge carries. Each unit of a tree visits each of its nodes once.
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

    inward:  trees that collect sums; their routes lead from dst to src
    outward: trees that spread results; each unit has the same root as in `inward`
    """

    inward: ReversibleTrees
    outward: ReversibleTrees


def there_and_back(trees: ReversibleTrees, mates: NDArray[np.int32]) -> PairedTrees:
    """Return pairs of trees: `trees` spread results outward, and the reversed trees collect sums inward.

    mates: int32 per link of the network: the opposite link
    """
    return PairedTrees(replace(trees, routes=reversed_routes(trees.routes, mates)), trees)


WholeUnits = tuple[Integers, Integers]
"""(int64 per link: units of the vector that the link carries; int64 per compute node: units of trees rooted there)."""


def packed_trees(
    topology: Topology, relabelled: Relabelled, whole: WholeUnits, options: Options, *, highest_first: bool = False
) -> ReversibleTrees:
    """Pack trees on `topology` with the units in `whole`, and remove edges to switches that forward nothing.

    Args:
        relabelled: `promoted(topology, switches)`, in which the switches that reduce or multicast are compute nodes.
        whole: number of units that each link may carry, and number of units that start at each root.
        highest_first: whether a root's first units are assigned to its highest trees, instead of its lowest trees.

    Raises:
        InvalidInput: if a switch cannot be removed (see `remove_switches`).
    """
    network, links = relabelled.network, topology.links
    carried, supply = whole
    split = remove_switches(network_of_links(network, carried, supply), names=network.node_ids)
    trees = pack_trees(split.network, options.objective, options.seed)
    height = tree_heights(trees, split.network.src)
    order = np.lexsort((-height if highest_first else height, trees.root))
    packed = Trees(trees.root[order], trees.weight[order], trees.parent_arc[order])
    rows = tree_transfers(network, carried, split, packed)
    before = np.cumsum(supply) - supply
    lo, hi = before[rows.root] + rows.lo, before[rows.root] + rows.hi
    tree = np.searchsorted(np.cumsum(packed.weight), lo, side="right")
    routes = Routes(rows.routes.offsets, relabelled.origin[rows.routes.link_ids])
    route = rows.route.astype(np.int64)
    src, dst = (ends(links)[route].astype(np.int64) for ends in (routes.sources, routes.destinations))
    roots = packed.root.astype(np.int64)
    # Edges to switches that do not forward anything are removed.
    nodes, ranks = topology.node_count, topology.compute_count
    alive = np.ones(len(src), dtype=np.bool_)
    while True:
        has_child = np.zeros(len(roots) * nodes, dtype=np.bool_)
        has_child[(tree * nodes + src)[alive]] = True
        leaf = alive & (dst >= ranks) & ~has_child[tree * nodes + dst]
        if not leaf.any():
            break
        alive &= ~leaf
    tree, src, dst, route, lo, hi = (each[alive] for each in (tree, src, dst, route, lo, hi))
    return ReversibleTrees(roots, packed.weight, tree, src, dst, route, lo, hi, routes)


def endpoint_steps(topology: Topology, trees: ReversibleTrees) -> tuple[Integers, Integers]:
    """Return (int64 per edge: step in which its source sends a result, int64 per tree: number of steps).

    Steps are counted from the root. A rank sends one step after it has received; a switch forwards data in the
    step in which it receives them. O(edges * height).
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
    *,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the unverified schedule that sums along inward trees, spreads results along outward trees, or does both.

    In an allreduce, an outward tree starts when all its units are summed.
    """
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
        sums_end = height - (inward.root >= topology.compute_count)  # a switch sends in the step of its last input
        first_unit = np.cumsum(outward.weight) - outward.weight
        start = np.maximum.reduceat(np.repeat(sums_end, inward.weight), first_unit)[outward.tree]
        parts.append(
            (
                start + out_step if collective == ALLREDUCE else out_step,
                outward.route + first,
                outward.lo,
                outward.hi,
                0,
            )
        )
        tables.append(outward.routes)
    routes = reduce(joined_routes, tables)
    steps, route, lo, hi = (np.concatenate([part[column] for part in parts]) for column in range(4))
    adds = np.concatenate([np.full(len(part[0]), part[4]) for part in parts])
    ranks, count = topology.compute_count, int(steps.max(initial=-1)) + 1
    order = np.argsort(steps, kind="stable")
    unit = int(np.gcd.reduce(np.concatenate([lo, hi, [outward.units]])))  # the largest unit that divides all intervals
    chunks, (row, *intervals) = split_over_shards(lo[order] // unit, hi[order] // unit, ranks, outward.units // unit)
    row = order[row]
    transfers = ColumnBounds(count, len(routes), ranks, chunks).pack((steps[row], route[row], *intervals, adds[row]))
    return Schedule(
        topology, collective, "pipelined", count, chunks, transfers, routes, method, parameters, certificate
    )  # fmt: skip
