"""Allreduce by pairs of trees: sums run up in-trees to many roots and down out-trees, all at the same time.

Every root owns a part of the vector, as large as its rate; the vector is reduced to the roots over one share of
every link and spread from there over the other (ForestColl, appendix E).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from chorale.synth.collective import ALLREDUCE
from chorale.synth.flow.graph import Integers, Ranks
from chorale.synth.forest.network import ForestNetwork, network_of_links
from chorale.synth.forest.split.remove import remove_switches
from chorale.synth.forest.tree_rows import TreeTransfers, split_over_shards, tree_transfers
from chorale.synth.forest.trees import Trees, tree_heights
from chorale.synth.forest.whole_pairs import IntegralPairs
from chorale.synth.schedule.compose import joined_routes, reversed_routes
from chorale.synth.schedule.routes import Routes
from chorale.synth.schedule.schedule import Parameter, Schedule
from chorale.synth.schedule.transfers import ColumnBounds
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transpose import transpose_with_links

Pack: TypeAlias = Callable[[ForestNetwork], Trees]


def pair_schedule(
    topology: Topology,
    pairs: IntegralPairs,
    pack: Pack,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the pipelined allreduce along trees that `pack` makes for each half, without a barrier. Not verified.

    In-trees are out-trees of the transpose, run backwards in time. The vector is cut into one unit per pair of trees;
    roots own intervals of them in rank order, whatever shards they cut across. The lowest in-trees of a root have the
    units of its highest out-trees, which begin when their own sums are complete. Raises InvalidInput where a switch
    stands in the way, as `remove_switches` does.
    """
    turned, origin = transpose_with_links(topology)
    inward = _packed(turned, pairs.reduce[origin], pairs.roots, pack, highest_first=False)
    outward = _packed(topology, pairs.gather, pairs.roots, pack, highest_first=True)
    routes, inward_route, outward_route = _all_routes(topology, inward.rows, outward.rows, origin)
    summed, start = _times(inward, outward)
    backwards = slice(None, None, -1)
    lo = np.concatenate([inward.lo[backwards], outward.lo])
    hi = lo + np.concatenate([(inward.rows.hi - inward.rows.lo)[backwards], outward.rows.hi - outward.rows.lo])
    inward_step = summed[inward.lo] - 1 - inward.rows.depth
    step = np.concatenate([inward_step[backwards], start[outward.lo] + outward.rows.depth])
    route = np.concatenate([inward_route[backwards], outward_route])
    reduce = (np.arange(len(step)) < len(inward_step)).astype(np.uint8)
    ranks, steps = topology.compute_count, int(step.max(initial=-1)) + 1
    chunks, (row, *intervals) = split_over_shards(lo, hi, ranks, int(pairs.roots.sum()))
    transfers = ColumnBounds(steps, len(routes), ranks, chunks).pack((step[row], route[row], *intervals, reduce[row]))
    return Schedule(
        topology, ALLREDUCE, "pipelined", steps, chunks, transfers, routes, method, parameters, certificate
    )  # fmt: skip


class _Half(NamedTuple):
    """Trees of one half, roots in rank order. weight, height: per tree;  lo: per row, the first unit of the vector."""

    rows: TreeTransfers
    weight: Integers
    height: Ranks
    lo: Integers


def _packed(topology: Topology, carried: Integers, roots: Integers, pack: Pack, highest_first: bool) -> _Half:
    split = remove_switches(network_of_links(topology, carried, roots), names=topology.node_ids)
    packed = pack(split.network)
    height = tree_heights(packed, split.network.src)
    order = np.lexsort((-height if highest_first else height, packed.root))
    trees = Trees(packed.root[order], packed.weight[order], packed.parent_arc[order])
    rows = tree_transfers(topology, carried, split, trees)
    before = np.cumsum(roots) - roots
    return _Half(rows, trees.weight, height[order], before[rows.root] + rows.lo)


def _times(inward: _Half, outward: _Half) -> tuple[Ranks, Ranks]:
    """Return (the step in which it is summed up, that in which its out-tree begins) of each unit of the vector."""
    summed = np.repeat(inward.height, inward.weight)
    first = np.cumsum(outward.weight) - outward.weight
    return summed, np.repeat(np.maximum.reduceat(summed, first), outward.weight)


def _all_routes(
    topology: Topology, inward: TreeTransfers, outward: TreeTransfers, origin: Ranks
) -> tuple[Routes, Ranks, Ranks]:
    """Return (routes of both halves on `topology`, the routes of the rows inward, outward)."""
    if topology.switch_count == 0:
        return outward.routes, origin[inward.route], outward.route
    backwards = reversed_routes(inward.routes, origin)
    return joined_routes(backwards, outward.routes), inward.route, outward.route + np.int32(len(backwards))
