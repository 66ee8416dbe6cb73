"""Plans routes for given traffic, in whole chunks and with a proven bound, and plans again when the traffic changes.

The first plan comes from a linear program. On larger networks, data first use shortest paths and move from busy links
to cheaper paths; if the resulting time is not close enough to the bound, the linear program or a price descent is used.
A later plan sends the new traffic along the earlier flows, in the same proportions, and moves parts of it from busy
links. Prices prove bounds: each unit from s to t costs at least the price of the cheapest path (the distance). In time
T, the data on a link cost at most T * price * bandwidth. So T >= (sum of amount * distance) / (sum of price *
bandwidth) for any prices. Equal prices on the links into a set of nodes give the bound of this set's cut.

This module also computes how long the same traffic takes without a plan, on the paths that libraries use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from chorale.synth.errors import InvalidInput
from chorale.synth.kernels import native
from chorale.synth.methods.alltoall.alltoall import approximate, choose_method
from chorale.synth.methods.alltoall.balance import Flows, IntegralFlows, Router, SharedFlows, balanced, best_of
from chorale.synth.methods.alltoall.linear_program import Commodities, commodities_of, reduced_problem
from chorale.synth.methods.alltoall.rate import BoundsListener, RateMethod, integer_prices
from chorale.synth.methods.alltoall.schedule import FlowPaths, flow_paths_of, require_schedule_size, shortened
from chorale.synth.methods.traffic.cuts import cuts_of_amounts
from chorale.synth.methods.traffic.fabric import RAILS, RailFabric, ShortestPaths, leg_demands, rail_fabric, relays_of
from chorale.synth.methods.traffic.matrix import (
    ChunkCounts,
    TrafficMatrix,
    chunk_counts,
    exact_counts,
    parts_of_chunks,
    require_ranks,
    require_traffic,
)
from chorale.synth.methods.traffic.plan import PriceBound, Prices, TrafficPlan, proven_time
from chorale.synth.methods.traffic.two_level import RailPlan, cut_bound, plan_rails, rails_along
from chorale.synth.schedule.schedule import MAX_CHUNKS
from chorale.synth.topology.topology import Topology

DEFAULT_GAP = Fraction(1, 200)
_LARGEST_LOAD = 2**58
_FINE_UNITS = 720720
_LIMITS, _MOVES, _BELOW = 4, 60, Fraction(1, 50)
_PARTS = (2, 3, 4, 6, 12, 24)
_FINE_GAP = Fraction(1, 1000)
_FEW_CELLS = 2**12
"""Maximum of ranks * links for which the linear program is fast, so that its exact plans are used."""
_MOST_CELLS = 2**17
"""If ranks * links is larger, planning flows takes minutes, so a plan in closed form is used if there is one."""
TPlan = TypeVar("TPlan", bound=TrafficPlan)
BASELINES: Mapping[str, str] = {
    "direct": "every pair over one shortest path, all at the same time",
    "sender_rail": "over the NIC of the sender, then inside the receiver's box, all at the same time",
    "receiver_rail": "over the NIC of the receiver's index, as NCCL with PXN, all at the same time",
    "two_level": "one phase inside boxes, one between ranks of equal index, in the better order",
}
"""Ways in which libraries send traffic, with descriptions. In a single box, all of them do the same as `direct`."""


@dataclass(frozen=True, slots=True, eq=False)
class FlowPlan(TrafficPlan):
    """A plan that consists of a flow from each source.

    problem: all sources and links, and the demand in chunks
    flows:   int64[ranks, links of the problem], number of chunks from each source on each link
    """

    problem: Commodities
    flows: IntegralFlows

    def paths(self) -> FlowPaths:
        return flow_paths_of(self.problem, slice(0, len(self.flows)), self.flows)


def plan_traffic(
    topology: Topology,
    matrix: TrafficMatrix,
    *,
    chunks: int | None = None,
    gap: Fraction = DEFAULT_GAP,
    method: RateMethod | None = None,
    report: BoundsListener | None = None,
) -> TrafficPlan:
    """Return a plan that sends `matrix` over any routes in parallel, with a certified bound on its time.

    Boxes with rails have a plan in closed form. On other networks, or if that is not within `gap`, flows are planned.

    Args:
        topology: the network.
        matrix: amounts that ranks send to each other.
        chunks: number of chunks for the largest amount (see `chunk_counts`).
        gap: accepted time above the bound, relative to the bound, before flows are rounded to whole chunks.
        method: method for planning flows; if given, the closed form is not used.
        report: function that is called with the bounds of a price descent as they improve.

    Raises:
        InvalidInput: if the network is too large for flows, the matrix has another number of ranks, or `gap` < 0.
    """
    require_ranks(matrix, topology.compute_count, topology.spec)
    require_traffic(matrix)
    if gap < 0:
        raise InvalidInput("the gap of a plan must not be negative", gap, "choose 0.005 or so")
    fabric = rail_fabric(topology) if method is None else None
    rails = None if fabric is None else _over_rails(fabric, matrix, chunks)
    if rails is not None and (rails.gap <= gap or len(matrix.amounts) * len(topology.links) > _MOST_CELLS):
        return rails
    flows = _plan_flows(topology, matrix, chunks, gap, method, report)
    return flows if rails is None else _better(rails, flows)


def _over_rails(fabric: RailFabric, matrix: TrafficMatrix, chunks: int | None) -> RailPlan:
    if chunks is not None:
        return plan_rails(fabric, matrix, chunk_counts(matrix, chunks))
    counts = exact_counts(matrix)
    plan = plan_rails(fabric, matrix, counts)
    finer = parts_of_chunks(counts, _PARTS[-1]) if plan.gap > _FINE_GAP else None
    return plan if finer is None else _better(plan_rails(fabric, matrix, finer), plan)


def _better(left: TPlan, right: TPlan) -> TPlan:
    """Return the faster plan, with the larger of both lower bounds."""
    bound = max(left.bound, right.bound, key=lambda each: each.time)
    return replace(right if right.time < left.time else left, bound=bound)


def _plan_flows(
    topology: Topology,
    matrix: TrafficMatrix,
    chunks: int | None,
    gap: Fraction,
    method: RateMethod | None,
    report: BoundsListener | None,
) -> TrafficPlan:
    require_schedule_size(topology, None)
    counts = chunk_counts(matrix, chunks)
    problem = _problem_of(topology, counts)
    if method is None and chunks is None and len(problem.demand) * problem.link_count > _FEW_CELLS:
        nothing, none = np.zeros((len(problem.demand), problem.link_count), dtype=np.int64), Fraction(2**60)
        bound = _bound(topology, problem, matrix, [])
        usual = _no_slower_than_usual(FlowPlan(topology, matrix, counts, none, none, bound, "", problem, nothing))
        fine = _in_finer_chunks(usual, usual.flows.astype(np.float64), _FINE_GAP)
        moved = _no_slower_than_usual(_relieved(fine, _FINE_GAP, "moves"))
        if moved.gap <= gap:
            return moved
    reduction = reduced_problem(topology, problem)
    chosen = choose_method(reduction, method)
    solution = approximate(reduction, chosen, gap, report)
    prices = integer_prices(solution.prices)[reduction.merged]
    bound = _bound(topology, problem, matrix, [prices])
    start = SharedFlows(reduction, solution.class_flow)
    starts = [SharedFlows(reduction, shortened(reduction, solution)), start] if chosen == "lp" else [start]
    rate = counts.chunk / bound.time
    chosen_flows = best_of(starts, 1, rate)[1]
    # Units are so small that rounding loses little, but so large that loads fit into 64 bits.
    units = max(1, min(_FINE_UNITS, _LARGEST_LOAD // (int(problem.demand.sum()) * problem.node_count)))
    finest, fine_flows = balanced(start, units, rate)
    shares, fine_shares = (np.concatenate([part for _, part in each.blocks()]) for each in (chosen_flows, fine_flows))
    plan = _routed(topology, matrix, problem, counts, shares, bound, chosen, counts.chunk / finest)
    return _no_slower_than_usual(plan if chunks is not None else _in_finer_chunks(plan, fine_shares, _FINE_GAP))


def replan(plan: TrafficPlan, matrix: TrafficMatrix, gap: Fraction = DEFAULT_GAP) -> TrafficPlan:
    """Return a plan for `matrix` along the flows of `plan`. If it is not within `gap`, also make a new plan.

    The fastest plan is returned. On boxes with rails, the closed form is tried first, and used if it is within `gap`.

    Raises:
        InvalidInput: if the matrix is for another number of ranks.
    """
    topology = plan.topology
    require_ranks(matrix, topology.compute_count, topology.spec)
    require_traffic(matrix)
    fabric = rail_fabric(topology)
    rails = None if fabric is None else _over_rails(fabric, matrix, None)
    if rails is not None and rails.gap <= gap:
        return rails
    if not isinstance(plan, FlowPlan):
        return plan_traffic(topology, matrix, gap=gap)
    best: TrafficPlan = _relieved(_flows_along(plan, matrix, gap), gap, "warm")
    if best.gap > gap:
        best = _better(best, _plan_flows(topology, matrix, None, gap / 2, None, None))
    best = _no_slower_than_usual(best) if isinstance(best, FlowPlan) else best
    return best if rails is None else _better(rails, best)


def _relieved(plan: FlowPlan, gap: Fraction, method: str) -> FlowPlan:
    """Move parts of busy paths to cheaper paths until `plan` is within `gap` of its bound or no move helps.

    Also tries to prove a better bound, with prices on the links that need more time than a limit just below the plan's
    time.
    """
    problem = plan.problem
    width = problem.class_capacity[problem.link_class] / problem.scale
    index = np.zeros(len(plan.topology.links), dtype=np.int32)
    index[problem.link_ids] = np.arange(problem.link_count)

    def moved(plan: FlowPlan, limit: Fraction) -> Flows:
        paths, flows = plan.paths(), np.zeros((len(plan.flows), problem.link_count))
        columns = paths.source, paths.target, paths.amount, paths.offsets
        source, target, amount, offsets = map(np.ascontiguousarray, columns)
        network = problem.incoming, problem.outgoing, problem.outgoing_links, problem.src, problem.dst
        room = float(limit / plan.chunks.chunk) * width
        native.relieve_flows(*network, source, target, amount, offsets, index[paths.links], room, _MOVES, flows)
        return flows

    best, limit = plan, plan.bound.time
    for _ in range(_LIMITS):
        if best.gap <= gap:
            break
        flows = moved(best, limit)
        tried = _routed(plan.topology, plan.matrix, problem, plan.chunks, flows, best.bound, method)
        best = tried if tried.time < best.time else best
        limit = best.time * (1 - _BELOW)
        excess = moved(best, limit).sum(axis=0) / (float(limit / plan.chunks.chunk) * width) - 1
        candidates = [integer_prices(excess), (excess > excess.max() / 2).astype(np.int64)]
        bound = _bound(plan.topology, problem, plan.matrix, candidates)
        best = replace(best, bound=max(best.bound, bound, key=lambda each: each.time))
        limit = (best.bound.time + best.time) / 2
    return best


def _flows_along(plan: FlowPlan, matrix: TrafficMatrix, gap: Fraction) -> FlowPlan:
    counts = chunk_counts(matrix)
    problem = replace(plan.problem, demand=_demand(plan.topology, counts))
    bound = _bound(plan.topology, problem, matrix, [plan.bound.prices[problem.link_ids]])
    shares = plan.flows.astype(np.float64)
    warm = _routed(plan.topology, matrix, problem, counts, shares, bound, "warm")
    return _in_finer_chunks(warm, shares, gap)


def along(plan: TrafficPlan, matrix: TrafficMatrix) -> TrafficPlan:
    """Return a plan that sends `matrix` over the routes of `plan` in the same proportions, with a new bound."""
    if not (plan.time and matrix.sent.any()):
        return plan_amounts(plan.topology, matrix)
    if isinstance(plan, RailPlan):
        return rails_along(plan, matrix)
    assert isinstance(plan, FlowPlan)
    return _flows_along(plan, matrix, DEFAULT_GAP)


def plan_amounts(topology: Topology, matrix: TrafficMatrix) -> TrafficPlan:
    """Return a plan in closed form with chunks of one matrix unit or, if there are no rails, a plan of `plan_traffic`.

    If there is no traffic, the plan takes no time and cannot be turned into a schedule.
    """
    require_ranks(matrix, topology.compute_count, topology.spec)
    fabric, counts = rail_fabric(topology), ChunkCounts(matrix.amounts, Fraction(1))
    if fabric is not None:
        return plan_rails(fabric, matrix, counts)
    if matrix.sent.any():
        return plan_traffic(topology, matrix)
    problem, none = _problem_of(topology, counts), Fraction(0)
    bound = PriceBound(none, np.ones(len(topology.links), dtype=np.int64))
    flows = np.zeros((matrix.ranks, problem.link_count), dtype=np.int64)
    return FlowPlan(topology, matrix, counts, none, none, bound, "direct", problem, flows)


def in_chunks(plan: TrafficPlan) -> TrafficPlan:
    """Return `plan`, or a plan with larger chunks if any pair has too many chunks for a schedule."""
    if isinstance(plan, RailPlan) and int(plan.chunks.counts.max()) > MAX_CHUNKS:
        return plan_rails(plan.fabric, plan.matrix, exact_counts(plan.matrix))
    return plan


def bound_on(topology: Topology, matrix: TrafficMatrix) -> Fraction:
    """Return a lower bound on the time for `matrix`, from cuts around ranks and boxes, without making a plan."""
    fabric = rail_fabric(topology)
    if not matrix.sent.any():
        return Fraction(0)
    if fabric is not None:
        return cut_bound(fabric, matrix).time
    return _bound(topology, _problem_of(topology, chunk_counts(matrix)), matrix, []).time


def _no_slower_than_usual(plan: FlowPlan) -> FlowPlan:
    """Return `plan` or, if rounding to chunks made it slower than paths that libraries use, a plan with such paths."""
    problem, ranks = plan.problem, len(plan.problem.demand)
    paths = ShortestPaths(problem)
    usual = {"direct": np.broadcast_to(np.arange(ranks)[:, None], (ranks, ranks))}
    usual |= {f"{rail} rail": relays_of(plan.topology, rail) for rail in RAILS}
    for name, relays in usual.items():
        legs = leg_demands(problem.demand, relays)
        time = _time_of(plan.topology, problem, paths.loads(legs[0]) + paths.loads(legs[1])) * plan.chunks.chunk
        if time >= plan.time:
            continue
        flows = np.zeros((ranks, problem.link_count), dtype=np.int64)
        for source in range(ranks):
            alone = np.zeros_like(problem.demand)
            alone[source] = problem.demand[source]
            first, second = leg_demands(alone, relays)
            starts = np.flatnonzero(second.any(axis=1))
            flows[source] = paths.loads(first[[source]], np.array([source]))
            if len(starts):
                flows[source] += paths.loads(second[starts], starts)
        # Rounding removes cycles, which paths over relays may contain.
        shares = flows.astype(np.float64)
        plan = _routed(plan.topology, plan.matrix, problem, plan.chunks, shares, plan.bound, name, plan.fluid)
    return plan


def _in_finer_chunks(plan: FlowPlan, shares: Flows, gap: Fraction) -> FlowPlan:
    """Return `plan` if it is within `gap`, otherwise the best plan found for the flows `shares` in smaller chunks."""
    best, floor = plan, replace(plan, time=plan.fluid)
    for parts in _PARTS:
        if best.gap <= max(gap, floor.gap):
            break
        counts = parts_of_chunks(plan.chunks, parts)
        if counts is None:
            break
        problem = replace(plan.problem, demand=_demand(plan.topology, counts))
        tried = _routed(plan.topology, plan.matrix, problem, counts, shares, plan.bound, plan.method, plan.fluid)
        best = tried if tried.time < best.time else best
    return best


def _routed(
    topology: Topology,
    matrix: TrafficMatrix,
    problem: Commodities,
    counts: ChunkCounts,
    shares: Flows,
    bound: PriceBound,
    method: str,
    fluid: Fraction | None = None,
) -> FlowPlan:
    """Round the flows `shares`, float64[ranks, links of the problem], to whole chunks; return the resulting plan."""
    flows = Router(problem, 1).route(shares, slice(None))
    time = _time_of(topology, problem, flows.sum(axis=0)) * counts.chunk
    least = time if fluid is None else min(fluid, time)
    return FlowPlan(topology, matrix, counts, time, least, bound, method, problem, flows)


def _problem_of(topology: Topology, counts: ChunkCounts) -> Commodities:
    """Return the flow problem of `topology` with the demand in chunks. Symmetries are not used."""
    return replace(commodities_of(topology, symmetric=False), demand=_demand(topology, counts))


def _demand(topology: Topology, counts: ChunkCounts) -> NDArray[np.int64]:
    demand = np.zeros((topology.compute_count, topology.node_count), dtype=np.int64)
    demand[:, : topology.compute_count] = counts.counts
    np.fill_diagonal(demand, 0)
    return demand


def _bound(topology: Topology, problem: Commodities, matrix: TrafficMatrix, candidates: Sequence[Prices]) -> PriceBound:
    """Return the best bound from cuts, from equal prices, and from `candidates` (prices for the links of `problem`)."""
    sent, links = matrix.sent, topology.links
    cut = max(cuts_of_amounts(topology, sent), key=lambda each: each.time)
    inside = cut.inside
    best = PriceBound(cut.time, (inside[links.src] & ~inside[links.dst]).astype(np.int64))
    for prices in (*candidates, np.ones(problem.link_count, dtype=np.int64)):
        time = proven_time(problem, sent, prices)
        if time > best.time:
            spread = np.zeros(len(links), dtype=np.int64)
            spread[problem.link_ids] = prices
            best = PriceBound(time, spread)
    return best


def _time_of(topology: Topology, problem: Commodities, loads: NDArray[np.int64]) -> Fraction:
    """Return the time that the busiest link needs. `loads` has one entry per link of `problem`."""
    spread = np.zeros(len(topology.links), dtype=np.int64)
    spread[problem.link_ids] = loads
    return topology.links.longest_time(spread)


def baseline_times(plan: TrafficPlan) -> dict[str, Fraction]:
    """Return the times of all `BASELINES` for the chunks of `plan`, in units of data / bandwidth.

    Times are exact, but consider only bandwidth: latencies are ignored, and the busiest link is assumed to be never
    idle, so real times are not shorter.
    """
    topology, problem = plan.topology, _problem_of(plan.topology, plan.chunks)
    paths = ShortestPaths(problem)
    times, levels = {"direct": _time_of(topology, problem, paths.loads(problem.demand))}, []
    for rail in RAILS:
        loads = [paths.loads(leg) for leg in leg_demands(problem.demand, relays_of(topology, rail))]
        times[f"{rail}_rail"] = _time_of(topology, problem, loads[0] + loads[1])
        levels.append(sum((_time_of(topology, problem, load) for load in loads), Fraction(0)))
    times["two_level"] = min(levels)
    return {name: time * plan.chunks.chunk for name, time in times.items()}
