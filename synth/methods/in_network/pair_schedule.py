"""Trees that collect sums and trees that spread results, over ranks and switches that act: rates and schedules."""

from __future__ import annotations

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
from chorale.synth.methods.in_network.reversible_trees import ReversibleTrees, endpoint_steps
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Routes, Schedule
from chorale.synth.schedule.transforms import joined_routes
from chorale.synth.topology.topology import Topology


@dataclass(frozen=True, slots=True, eq=False)
class PairedTrees:
    """Trees that collect sums at their roots, and as many that spread the results from the same roots.

    inward: as the others, with routes that lead from dst to src;  roots and weights are those of `outward`
    """

    inward: ReversibleTrees
    outward: ReversibleTrees


def schedule_of_pairs(
    topology: Topology,
    collective: Collective,
    pairs: PairedTrees,
    *,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the schedule that adds up inward, spreads results outward, or does both (allreduce). Not verified."""
    inward, outward = pairs.inward, pairs.outward
    in_step, height = endpoint_steps(topology, inward)
    out_step, _ = endpoint_steps(topology, outward)
    name = collective.name
    parts, tables, first = [], [], 0
    if name in (CollectiveName.ALLREDUCE, CollectiveName.REDUCE, CollectiveName.REDUCE_SCATTER):
        parts.append((height[inward.tree] - 1 - in_step, inward.route, inward.lo, inward.hi, 1))
        tables.append(inward.routes)
        first = len(inward.routes)
    if name not in (CollectiveName.REDUCE, CollectiveName.REDUCE_SCATTER):
        sums_end = height - (inward.root >= topology.compute_count)  # a switch sends on in the step of the last sums
        start = sums_end[outward.tree] if collective == ALLREDUCE else 0
        parts.append((start + out_step, outward.route + first, outward.lo, outward.hi, 0))
        tables.append(outward.routes)
    routes = reduce(joined_routes, tables)
    steps, route, lo, hi = (np.concatenate([part[place] for part in parts]) for place in range(4))
    adds = np.concatenate([np.full(len(part[0]), part[4]) for part in parts])
    ranks, count = topology.compute_count, int(steps.max(initial=-1)) + 1
    order = np.argsort(steps, kind="stable")
    chunks, (row, *intervals) = split_over_shards(lo[order], hi[order], ranks, outward.units)
    row = order[row]
    transfers = ColumnBounds(count, len(routes), ranks, chunks).pack((steps[row], route[row], *intervals, adds[row]))
    return Schedule(
        topology, collective, "pipelined", count, chunks, transfers, routes, method, parameters, certificate
    )  # fmt: skip


def there_and_back(trees: ReversibleTrees, mates: NDArray[np.int32]) -> PairedTrees:
    """Return `trees`, and the same over the links back, `mates`, inward."""
    return PairedTrees(replace(trees, routes=_reversed(trees.routes, mates)), trees)


def turned_around(trees: ReversibleTrees, origin: NDArray[np.int32]) -> PairedTrees:
    """Return `trees` of the transposed network, whose links came from `origin`, inward; they do not spread."""
    return PairedTrees(replace(trees, routes=_reversed(trees.routes, origin)), trees)


def _reversed(routes: Routes, mates: NDArray[np.int32]) -> Routes:
    """Return each route from its end to its start over the links back."""
    lengths = np.diff(routes.offsets)
    position = np.arange(len(routes.link_ids)) - np.repeat(routes.offsets[:-1], lengths)
    mirrored = np.repeat(routes.offsets[1:] - 1, lengths) - position
    return Routes(routes.offsets, mates[routes.link_ids[mirrored]])


def rate_of_pairs(topology: Topology, pairs: PairedTrees) -> Fraction:
    """Return the rate of an allreduce by `pairs` as links and limited adders allow it, exactly."""
    inward = pairs.inward
    time = topology.links.longest_time(_loads(topology, inward) + _loads(topology, pairs.outward))
    for switch, ability in topology.abilities.items():
        if ability.reduce_bandwidth is not None:
            time = max(time, _sums_at(inward, switch) / ability.reduce_bandwidth)
    return pairs.outward.units / time


def _loads(topology: Topology, trees: ReversibleTrees) -> Integers:
    """Return int64 per link: units that it carries."""
    routes = trees.routes
    count = np.diff(routes.offsets)[trees.route]
    first = np.cumsum(count) - count
    position = np.arange(count.sum()) + np.repeat(routes.offsets[trees.route] - first, count)
    loads = np.zeros(len(topology.links), dtype=np.int64)
    np.add.at(loads, routes.link_ids[position], np.repeat(trees.hi - trees.lo, count))
    return loads


def _sums_at(trees: ReversibleTrees, switch: int) -> Fraction:
    """Return how many units a switch adds up: those that it gets from several neighbours."""
    children = np.bincount(trees.tree[trees.src == switch], minlength=len(trees.root))
    return Fraction(int(trees.weight[children > 1].sum()))
