"""Lower bounds on the bandwidth time of collectives, exact and certified: one question for every schedule."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from chorale.synth.bound.allreduce import allreduce_bounds
from chorale.synth.bound.cut import Bound
from chorale.synth.bound.cut_search import CutSearch, Nodes
from chorale.synth.bound.optimum import cut_direction, improving_cuts, node_set, search_for, shards_of_vector
from chorale.synth.collective import ALLGATHER, REDUCE_SCATTER, Collective, CollectiveName
from chorale.synth.topology.topology import Topology


def lower_bound(topology: Topology, collective: Collective, achieved: Fraction | None = None) -> Bound:
    """Return the best bound this package knows on T_B / M of `collective`, for any schedule.

    It is the optimum of allgather, reduce_scatter, broadcast and reduce (see `Optimum` for what that means on
    one-way networks), and a bound for allreduce and alltoall. With `achieved`, the time of a verified schedule,
    the search ends as soon as a bound meets it: nothing can be better. No flows if single ranks already decide.

    >>> from synth import parse_collective, parse_topology
    >>> str(lower_bound(parse_topology("ring:4"), parse_collective("allreduce")).value)
    '3/4'
    """
    best: Bound | None = None
    for bound in _bounds(topology, collective):
        if best is None or bound.value > best.value:
            best = bound
        if achieved is not None and best.value >= achieved:
            break
    if best is None:
        raise AssertionError("every collective has at least one bound")
    return best


def _bounds(topology: Topology, collective: Collective) -> Iterator[Bound]:
    if collective.name == CollectiveName.ALLREDUCE:
        yield from allreduce_bounds(topology)
    elif collective.name == CollectiveName.ALLTOALL:
        yield from _alltoall_bounds(topology)
    else:
        parts = shards_of_vector(topology, collective)
        for time, cut in improving_cuts(search_for(topology, collective)):
            yield Bound(cut_direction(collective), node_set(cut), time / parts)


def _alltoall_bounds(topology: Topology) -> Iterator[Bound]:
    """Yield what single ranks and the bottlenecks of allgather must exchange; chorale.synth.alltoall proves more."""
    for spread in (ALLGATHER, REDUCE_SCATTER):
        search = search_for(topology, spread)
        for _, cut in improving_cuts(search):
            yield Bound(cut_direction(spread), node_set(cut), _exchange_time(search, cut))


def _exchange_time(search: CutSearch, cut: Nodes) -> Fraction:
    """Return the time per byte that each of the ranks inside takes to hear from each outside."""
    ranks = search.topology.compute_count
    inside = int(np.count_nonzero(cut < ranks))
    return inside * search.time_per_shard(cut) / ranks
