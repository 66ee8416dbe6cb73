"""Bandwidth-optimal schedules of trees on any fabric, switches included (the method `forest`).

Data streams down k trees per root; the slowest link sets the time. The optimum is known from cuts; links get the
whole numbers of trees that it allows, switches are removed without loss, trees are packed into what is left and
mapped back to physical links. Sources: bandwidth-optimal pipeline; ForestColl.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chorale.synth.bounds.optimum import Optimum, fixed_k_optimum, optimum
from chorale.synth.collective import ALLGATHER, Collective, CollectiveName
from chorale.synth.errors import InvalidInput
from chorale.synth.executor.base import Executor, Progress
from chorale.synth.methods.forest.network import forest_network, trees_on_links
from chorale.synth.methods.forest.packing import Portfolio
from chorale.synth.methods.forest.split.splitting_off import SplitNetwork
from chorale.synth.methods.forest.split.switch_removal import remove_switches
from chorale.synth.methods.forest.tree_transfers import split_over_shards, tree_transfers
from chorale.synth.methods.forest.trees import Trees
from chorale.synth.methods.forest.warm_start import reused_trees
from chorale.synth.methods.method import Options
from chorale.synth.schedule.schedule import ColumnBounds, Parameter, Schedule
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transversal import Transversal


def tree_schedule(
    topology: Topology,
    collective: Collective,
    trees_per_bandwidth: Fraction,
    split: SplitNetwork,
    trees: Trees,
    *,
    method: str,
    parameters: Mapping[str, Parameter],
    certificate: Mapping[str, Any],
) -> Schedule:
    """Return the pipelined allgather, or broadcast, that sends along `trees`.

    split: `forest_network(topology, trees_per_bandwidth, ...)` without its switches; `trees` are trees of
    `split.network`. With k trees per root (weights added up), a shard is cut into k parts, one for each; the trees
    of one root take them in their order. An arc hands out its paths in their order, so that a transfer of
    several parts may become several transfers. Not verified. O(trees * ranks + hops of all paths).
    """
    if collective.name not in (CollectiveName.ALLGATHER, CollectiveName.BROADCAST):
        possible = "allgather or broadcast"
        raise InvalidInput(f"trees spread data: they make {possible}", collective.name.value, f"choose {possible}")
    carried = trees_on_links(topology, trees_per_bandwidth)
    rows = tree_transfers(topology, carried, split, trees)
    k = rows.units
    columns: tuple[NDArray[np.integer], ...]
    if collective == ALLGATHER:
        chunks, columns = k, (rows.depth, rows.route, rows.root, rows.lo, rows.hi)
    else:
        chunks, (row, *intervals) = split_over_shards(rows.lo, rows.hi, topology.compute_count, k)
        columns = (rows.depth[row], rows.route[row], *intervals)
    bounds = ColumnBounds(rows.height, len(rows.routes), topology.compute_count, chunks)
    transfers = bounds.pack((*columns, np.zeros(len(columns[0]), dtype=np.uint8)))
    return Schedule(
        topology, collective, "pipelined", rows.height, chunks, transfers, rows.routes, method, parameters,
        certificate, k,
    )  # fmt: skip


def forest(
    topology: Topology,
    collective: Collective,
    options: Options,
    executor: Executor,
    *,
    method: str = "forest",
    progress: Progress | None = None,
) -> Schedule:
    """Return the allgather or broadcast down trees whose time is the optimum, or the least for k trees per root.

    options: k, objective, seed, seeds and warm_start are used. The seed sets the order in which roots get their trees;
             every seed is a task of `executor`, and the packing that suits the objective best is taken. Trees of the
             warm start, a schedule for another fabric, are kept as far as they hold; without k, its k is used where
             no other is faster.
    method:  the name that the schedule carries
    The certificate is the cut that allows no less. Raises InvalidInput where amounts would leave 64 bits, and where
    a switch with more bandwidth out than in stands in the way of trees as fast as the bound.
    """
    warm_start, k = options.warm_start, options.k
    best = _optimum(topology, collective, k, None if warm_start is None else warm_start.trees_per_root)
    supply = np.zeros(topology.compute_count, dtype=np.int64)
    supply[slice(None) if collective.root is None else collective.root] = best.k
    network = forest_network(topology, best.trees_per_bandwidth, supply)
    split = remove_switches(network, names=topology.node_ids)
    first = None if warm_start is None else reused_trees(warm_start, topology, split.network)
    portfolio = Portfolio(split.network, options.objective, _symmetries(topology), first)
    trees = portfolio.best(range(options.seed, options.seed + options.seeds), executor, progress)
    parameters: dict[str, Parameter] = {
        "k": k, "objective": options.objective, "seed": options.seed, "seeds": options.seeds,
    }  # fmt: skip
    if warm_start is not None:
        parameters["warm_start"] = warm_start.id
    certificate = best.bound.to_json(topology)
    return tree_schedule(
        topology, collective, best.trees_per_bandwidth, split, trees,
        method=method, parameters=parameters, certificate=certificate,
    )  # fmt: skip


def _optimum(topology: Topology, collective: Collective, k: int | None, old_k: int | None) -> Optimum:
    """Return the optimum for `k` trees per root; for `old_k` where k is free and no number of trees is faster."""
    if k is not None:
        return fixed_k_optimum(topology, collective, k)
    best = optimum(topology, collective)
    if old_k is None or old_k == best.k:
        return best
    with_old_k = fixed_k_optimum(topology, collective, old_k)
    return with_old_k if with_old_k.time_per_byte == best.time_per_byte else best


def _symmetries(topology: Topology) -> Transversal | None:
    """Return known symmetries that take rank 0 to every rank, of networks without switches; packing checks them."""
    if topology.switch_count or not automorphisms_are_transitive(topology):
        return None
    return Transversal.of(topology)
