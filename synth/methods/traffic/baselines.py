"""How long given traffic takes without a plan for it: as libraries send it, in rounds, or as if sizes were equal."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from chorale.synth.methods.alltoall.alltoall import DEFAULT_GAP, alltoall_rate, approximate, choose_method
from chorale.synth.methods.alltoall.balance import SharedFlows
from chorale.synth.methods.alltoall.commodities import Commodities, commodities_of
from chorale.synth.methods.alltoall.reduction import reduced_problem
from chorale.synth.methods.alltoall.routing import Router
from chorale.synth.methods.traffic.plan import TrafficPlan
from chorale.synth.methods.traffic.planner import longest_time, problem_of, widths_of
from chorale.synth.methods.traffic.rails import RAILS, ShortestPaths, leg_demands, relays_of
from chorale.synth.topology.topology import Topology

BASELINES: Mapping[str, str] = {
    "direct": "every pair over one shortest path, all at once",
    "direct_ecmp": "every pair over all shortest paths evenly, all at once",
    "sender_rail": "over the NIC of the sender, then inside the receiver's box, all at once",
    "receiver_rail": "over the NIC of the receiver's index, as NCCL with PXN, all at once",
    "two_level": "one phase inside boxes, one between ranks of equal index, in the better order",
    "pairwise": "one shortest path, N - 1 rounds of one partner each, one after the other",
    "uniform_paths": "over the paths of the all-to-all of equal sizes",
    "uniform_padded": "an all-to-all of equal sizes, all pairs padded to the largest",
}
"""What the times are of. What libraries do on boxes with rails is the same as `direct` in a single box."""
LIBRARY = ("direct", "sender_rail", "receiver_rail", "two_level")
"""What libraries do; the fastest is the baseline."""


def baseline_times(plan: TrafficPlan) -> dict[str, Fraction]:
    """Return the times of `BASELINES` for the traffic of `plan`, in units of amount / bandwidth.

    All send the chunks of the plan. Exact but for the rounding of even shares. Bandwidth alone: no latencies, and the
    busiest link is never idle, so that real times are not shorter.
    """
    topology, problem, chunk = plan.topology, problem_of(plan.topology, plan.chunks), plan.chunks.chunk
    paths = ShortestPaths(problem)
    uniform = _through_uniform_flows(topology, problem)
    times = {
        "direct": longest_time(problem, paths.loads(problem.demand)),
        "direct_ecmp": _largest(problem, _even_loads(problem, paths.hops)),
        **_rails(topology, paths),
        "pairwise": _rounds(problem, paths.parents),
        "uniform_paths": longest_time(problem, uniform),
        "uniform_padded": int(problem.demand.max()) / alltoall_rate(topology).lower,
    }
    return {name: time * chunk for name, time in times.items()}


def _rails(topology: Topology, paths: ShortestPaths) -> dict[str, Fraction]:
    """Return the times over the sender's rail, over the receiver's rail, and in two phases."""
    times, levels = {}, []
    for rail in RAILS:
        legs = leg_demands(paths.problem.demand, relays_of(topology, rail))
        loads = [paths.loads(leg) for leg in legs]
        times[f"{rail}_rail"] = longest_time(paths.problem, loads[0] + loads[1])
        levels.append(sum((longest_time(paths.problem, load) for load in loads), Fraction(0)))
    return {**times, "two_level": min(levels)}


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


def _rounds(problem: Commodities, parents: NDArray[np.int64]) -> Fraction:
    """Return the time of rounds r = 1 to N - 1, in which s sends to s + r; each ends with its busiest link."""
    ranks = len(problem.demand)
    source, total = np.arange(ranks), Fraction(0)
    for distance in range(1, ranks):
        target = (source + distance) % ranks
        amount, node = problem.demand[source, target], target.copy()
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
