"""Allreduce by pairs of trees: sums run up in-trees to many roots and down out-trees, all at the same time.

Every root owns a part of the vector, as large as its rate; the vector is reduced to the roots over one share of
every link and spread from there over the other (ForestColl, appendix E).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

from synth.collective import ALLREDUCE
from synth.flow.graph import Integers, Ranks
from synth.forest.network import ForestNetwork, network_of_links
from synth.forest.split.remove import remove_switches
from synth.forest.tree_rows import TreeRows, over_shards, rows_of_trees
from synth.forest.trees import Trees
from synth.forest.whole_pairs import WholePairs
from synth.schedule.compose import joined_routes, reversed_routes
from synth.schedule.routes import Routes
from synth.schedule.schedule import Parameter, Schedule
from synth.schedule.transfers import ColumnBounds
from synth.topology.topology import Topology
from synth.topology.transpose import transpose_with_links

Pack: TypeAlias = Callable[[ForestNetwork], Trees]


def pair_schedule(
    topology: Topology,
    pairs: WholePairs,
    pack: Pack,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the pipelined allreduce along trees that `pack` makes for each half, without a barrier. Not verified.

    In-trees are out-trees of the transpose, run backwards in time; all end in the same step, in which out-trees begin.
    The vector is cut into one unit per pair of trees; roots own intervals of them in rank order, whatever shards they
    cut across. Raises InvalidInput where a switch stands in the way, as `remove_switches` does.
    """
    turned, origin = transpose_with_links(topology)
    inward = _packed(turned, pairs.reduce[origin], pairs.roots, pack)
    outward = _packed(topology, pairs.gather, pairs.roots, pack)
    routes, inward_route, outward_route = _all_routes(topology, inward, outward, origin)
    steps = inward.height + outward.height
    first = np.cumsum(pairs.roots) - pairs.roots
    ranks, units = topology.compute_count, int(pairs.roots.sum())
    backwards = slice(None, None, -1)
    step = np.concatenate([(inward.height - 1 - inward.depth)[backwards], inward.height + outward.depth])
    route = np.concatenate([inward_route[backwards], outward_route])
    lo = np.concatenate([(first[inward.root] + inward.lo)[backwards], first[outward.root] + outward.lo])
    hi = np.concatenate([(first[inward.root] + inward.hi)[backwards], first[outward.root] + outward.hi])
    reduce = (np.arange(len(step)) < len(inward.depth)).astype(np.uint8)
    chunks, (row, *intervals) = over_shards(lo, hi, ranks, units)
    transfers = ColumnBounds(steps, len(routes), ranks, chunks).pack((step[row], route[row], *intervals, reduce[row]))
    return Schedule(
        topology, ALLREDUCE, "pipelined", steps, chunks, transfers, routes, method, parameters, certificate
    )  # fmt: skip


def _packed(topology: Topology, carried: Integers, roots: Integers, pack: Pack) -> TreeRows:
    split = remove_switches(network_of_links(topology, carried, roots), names=topology.node_ids)
    return rows_of_trees(topology, carried, split, pack(split.network))


def _all_routes(topology: Topology, inward: TreeRows, outward: TreeRows, origin: Ranks) -> tuple[Routes, Ranks, Ranks]:
    """Return (routes of both halves on `topology`, the routes of the rows inward, outward)."""
    if topology.switch_count == 0:
        return outward.routes, origin[inward.route], outward.route
    backwards = reversed_routes(inward.routes, origin)
    return joined_routes(backwards, outward.routes), inward.route, outward.route + np.int32(len(backwards))
