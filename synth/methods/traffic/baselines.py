"""How long given traffic takes without a plan for it: sent directly, in rounds, or as an all-to-all of equal sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, alltoall_rate, approximate, choose_method
from chorale.synth.methods.alltoall.balance import SharedFlows
from chorale.synth.methods.alltoall.commodities import Commodities, commodities_of
from chorale.synth.methods.alltoall.rate import distances_by
from chorale.synth.methods.alltoall.reduction import reduced_problem
from chorale.synth.methods.alltoall.routing import Router
from chorale.synth.methods.traffic.matrix import TrafficMatrix
from chorale.synth.methods.traffic.planner import longest_time, widths_of
from chorale.synth.topology.topology import Topology

BASELINES: Mapping[str, str] = {
    "direct": "every pair over one shortest path, all at once",
    "direct_ecmp": "every pair over all shortest paths evenly, all at once",
    "pairwise": "one shortest path, N - 1 rounds of one partner each, one after the other",
    "uniform_paths": "over the paths of the all-to-all of equal sizes",
    "uniform_padded": "an all-to-all of equal sizes, all pairs padded to the largest",
}
"""What the times are of."""


def baseline_times(topology: Topology, matrix: TrafficMatrix) -> dict[str, Fraction]:
    """Return the times of `BASELINES`, in units of amount / bandwidth; exact but for the rounding of even shares.

    Bandwidth alone: no latencies, and the busiest link is never idle, so that real times are not shorter.
    """
    problem = commodities_of(topology, symmetric=False)
    demand = np.zeros((topology.compute_count, topology.node_count), dtype=np.int64)
    demand[:, : topology.compute_count] = matrix.sent
    problem = replace(problem, demand=demand)
    hops = distances_by(problem, np.ones(problem.link_count))
    parents = _parents(problem, hops)
    uniform = _through_uniform_flows(topology, problem)
    return {
        "direct": longest_time(problem, _tree_loads(problem, hops, parents)),
        "direct_ecmp": _largest(problem, _even_loads(problem, hops)),
        "pairwise": _rounds(problem, parents, matrix),
        "uniform_paths": longest_time(problem, uniform),
        "uniform_padded": int(matrix.sent.max()) / alltoall_rate(topology).lower,
    }


def _largest(problem: Commodities, loads: NDArray[np.float64]) -> Fraction:
    return Fraction(float((loads * problem.scale / widths_of(problem)).max()))


def _even_loads(problem: Commodities, hops: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the load of every link if nodes take what they need in equal parts over all links one hop nearer."""
    nearer = hops[:, problem.src] + 1 == hops[:, problem.dst]
    ways = np.add.reduceat(nearer, problem.incoming[:-1], axis=1)
    need, loads = problem.demand.astype(np.float64), np.zeros(problem.link_count)
    for distance in range(int(hops.max()), 0, -1):
        source, link = np.nonzero(nearer & (hops[:, problem.dst] == distance))
        share = need[source, problem.dst[link]] / ways[source, problem.dst[link]]
        np.add.at(loads, link, share)
        np.add.at(need, (source, problem.src[link]), share)
    return loads


def _parents(problem: Commodities, hops: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return int64[sources, nodes]: the first link into each node from one that is a hop nearer to the source."""
    nearer = hops[:, problem.src] + 1 == hops[:, problem.dst]
    parents = np.full(hops.shape, -1, dtype=np.int64)
    for link in range(problem.link_count - 1, -1, -1):
        rows = np.flatnonzero(nearer[:, link])
        parents[rows, problem.dst[link]] = link
    return parents


def _tree_loads(problem: Commodities, hops: NDArray[np.float64], parents: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the load of every link where all that a source sends goes down its tree."""
    need = problem.demand.copy()
    loads = np.zeros(problem.link_count, dtype=np.int64)
    for distance in range(int(hops.max()), 0, -1):
        source, node = np.nonzero(hops == distance)
        link = parents[source, node]
        np.add.at(loads, link, need[source, node])
        np.add.at(need, (source, problem.src[link]), need[source, node])
    return loads


def _rounds(problem: Commodities, parents: NDArray[np.int64], matrix: TrafficMatrix) -> Fraction:
    """Return the time of rounds r = 1 to N - 1, in which s sends to s + r; each ends with its busiest link."""
    ranks = matrix.ranks
    source, total = np.arange(ranks), Fraction(0)
    for distance in range(1, ranks):
        target = (source + distance) % ranks
        amount, node = matrix.sent[source, target], target.copy()
        loads = np.zeros(problem.link_count, dtype=np.int64)
        while (left := np.flatnonzero(node != source)).size:
            link = parents[source[left], node[left]]
            np.add.at(loads, link, amount[left])
            node[left] = problem.src[link]
        total += longest_time(problem, loads)
    return total


def _through_uniform_flows(topology: Topology, problem: Commodities) -> NDArray[np.int64]:
    """Return the load of every link where pairs keep to the flows of the uniform all-to-all, in their proportions."""
    reduction = reduced_problem(topology, commodities_of(topology, symmetric=False))
    solution = approximate(reduction, choose_method(reduction, None), DEFAULT_GAP, None)
    flows = np.concatenate([part for _, part in SharedFlows(reduction, solution.class_flow).blocks()])
    loads: NDArray[np.int64] = Router(problem, 1).route(flows, slice(None)).sum(axis=0)
    return loads
