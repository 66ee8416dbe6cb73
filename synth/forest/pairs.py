"""Whether allreduce is faster by pairs of trees than by reduce_scatter and allgather, and the schedule if it is."""

from __future__ import annotations

from fractions import Fraction

from chorale.synth.bound.allreduce import reduce_scatter_allgather_time
from chorale.synth.bound.bound import lower_bound
from chorale.synth.bound.fixed_k import fixed_k_optimum
from chorale.synth.bound.tree_pairs import is_within_limits, tree_pairs
from chorale.synth.collective import ALLGATHER, ALLREDUCE, REDUCE_SCATTER
from chorale.synth.executor.port import Executor, Progress
from chorale.synth.executor.serial import SerialExecutor
from chorale.synth.forest.network import ForestNetwork
from chorale.synth.forest.objective import Objective
from chorale.synth.forest.pair_schedule import pair_schedule
from chorale.synth.forest.portfolio import Portfolio
from chorale.synth.forest.trees import Trees
from chorale.synth.forest.whole_pairs import integral_pairs
from chorale.synth.schedule.schedule import Schedule
from chorale.synth.topology.topology import Topology


def faster_pairs(
    topology: Topology,
    k: int | None = None,
    objective: Objective = "height",
    seed: int = 0,
    seeds: int = 1,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> Schedule | None:
    """Return the allreduce by pairs of trees, or None where reduce_scatter followed by allgather is as fast.

    k: pairs of trees per rank on average, against two phases of k trees per root; None for as many as it takes.
    Other arguments are as of `forest`, for each half.
    The certificate proves what no pairs of trees beat (`check_pair_certificate`). None also above the limits of
    `tree_pairs`; its linear program is left out where two phases meet a bound. Raises InvalidInput as `whole_pairs`
    and `pair_schedule` do.
    """
    two_phases = reduce_scatter_allgather_time(topology)
    if not is_within_limits(topology) or lower_bound(topology, ALLREDUCE, two_phases).value >= two_phases:
        return None
    pairs = tree_pairs(topology)
    whole = integral_pairs(topology, pairs.split, k)
    if whole.time_per_byte >= (two_phases if k is None else _two_phases_of(topology, k)):
        return None

    def pack(network: ForestNetwork) -> Trees:
        portfolio = Portfolio(network, objective, None, None)
        return portfolio.best(range(seed, seed + seeds), executor or SerialExecutor(), progress)

    parameters = {"k": k, "objective": objective, "seed": seed, "seeds": seeds}
    return pair_schedule(topology, whole, pack, "forest", parameters, pairs.certificate)


def _two_phases_of(topology: Topology, k: int) -> Fraction:
    phases = (fixed_k_optimum(topology, phase, k) for phase in (REDUCE_SCATTER, ALLGATHER))
    return sum((phase.time_per_byte for phase in phases), Fraction(0))
