"""Bandwidth-optimal schedules of trees on any fabric, switches included.

Data streams down k trees per root; the slowest link sets the time. The optimum is known from cuts; links get the
whole numbers of trees that it allows, switches are removed without loss, trees are packed into what is left and
mapped back to physical links. Sources: bandwidth-optimal pipeline; ForestColl.
"""

from __future__ import annotations

import numpy as np

from chorale.synth.bound.fixed_k import fixed_k_optimum
from chorale.synth.bound.optimum import optimum
from chorale.synth.collective import Collective
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.forest.network import forest_network
from chorale.synth.forest.objective import Objective
from chorale.synth.forest.portfolio import Portfolio
from chorale.synth.forest.reuse import reused_trees
from chorale.synth.forest.schedule import tree_schedule
from chorale.synth.forest.split.remove import remove_switches
from chorale.synth.schedule.schedule import Parameter, Schedule
from chorale.synth.topology.automorphism import automorphisms_are_transitive
from chorale.synth.topology.topology import Topology
from chorale.synth.topology.transversal import Transversal


def forest(
    topology: Topology,
    collective: Collective,
    k: int | None = None,
    objective: Objective = "height",
    seed: int = 0,
    method: str = "forest",
    warm_start: Schedule | None = None,
    seeds: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Schedule:
    """Return the allgather or broadcast down trees whose time is the optimum, or the least for k trees per root.

    objective: which of equally fast packings to prefer; seed: the order in which roots get their trees; of `seeds`
               seeds from this one on, each a task of `executor`, the one that suits the objective best is taken
    warm_start: a schedule of trees of another fabric, whose trees are kept as far as they hold; its k if none is given
    The certificate is the cut that allows no less. Raises InvalidInput where amounts would leave 64 bits, and where
    a switch with more bandwidth out than in stands in the way of trees as fast as the bound.
    """
    if k is None and warm_start is not None:
        k = warm_start.trees_per_root
    best = optimum(topology, collective) if k is None else fixed_k_optimum(topology, collective, k)
    supply = np.zeros(topology.compute_count, dtype=np.int64)
    supply[slice(None) if collective.root is None else collective.root] = best.k
    network = forest_network(topology, best.trees_per_bandwidth, supply)
    split = remove_switches(network, names=topology.node_ids)
    first = None if warm_start is None else reused_trees(warm_start, topology, split.network)
    portfolio = Portfolio(split.network, objective, _symmetries(topology), first)
    trees = portfolio.best(range(seed, seed + seeds), executor or SerialExecutor(), progress)
    parameters: dict[str, Parameter] = {"k": k, "objective": objective, "seed": seed, "seeds": seeds}
    if warm_start is not None:
        parameters["warm_start"] = warm_start.id
    certificate = best.bound.to_json(topology)
    return tree_schedule(topology, collective, best.trees_per_bandwidth, split, trees, method, parameters, certificate)


def _symmetries(topology: Topology) -> Transversal | None:
    """Return known symmetries that take rank 0 to every rank, of networks without switches; packing checks them."""
    if topology.switch_count or not automorphisms_are_transitive(topology):
        return None
    return Transversal.of(topology)
